"""Grants: what a pin signs so that data servers send these blocks and no others.

A grant is the time of its end (8 bytes, big-endian Unix milliseconds) and an HMAC-SHA256 under
the source rank's own key over transfer, end and blocks. It outlives no pin: its end is the last
moment that the pin could be renewed to.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import time
from collections.abc import Sequence

BLOCK_ID_BYTES = 4
_END = struct.Struct(">Q")
_MAC_BYTES = 32


def pack_blocks(blocks: Sequence[int]) -> bytes:
    """Block ids as little-endian 32-bit integers, 4 bytes each, in order.

    Raises:
        struct.error: an id is negative or does not fit 32 bits.
    """
    return struct.pack(f"<{len(blocks)}I", *blocks)


def unpack_blocks(packed: bytes) -> tuple[int, ...]:
    """The reverse of :func:`pack_blocks`.

    Raises:
        ValueError: the bytes are not a whole number of ids.
    """
    if len(packed) % BLOCK_ID_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of block ids")
    return struct.unpack(f"<{len(packed) // BLOCK_ID_BYTES}I", packed)


def sign_grant(key: bytes, transfer: str, packed_blocks: bytes, expires_ms: int) -> bytes:
    """Permission to read exactly these blocks for this transfer until ``expires_ms`` (Unix)."""
    end = _END.pack(expires_ms)
    return end + _mac(key, transfer, end, packed_blocks)


def verify_grant(
    key: bytes, transfer: str, grant: bytes, packed_blocks: bytes, now_ms: int | None = None
) -> bool:
    """Does this grant allow the blocks to be sent at ``now_ms`` (Unix; now)? Never raises."""
    if len(grant) != _END.size + _MAC_BYTES:
        return False
    end, mac = grant[: _END.size], grant[_END.size :]
    if not hmac.compare_digest(mac, _mac(key, transfer, end, packed_blocks)):
        return False
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000
    return int(_END.unpack(end)[0]) > now_ms


def verify_host_grant(
    key: bytes,
    transfer: str,
    grant: bytes,
    packed_slots: bytes,
    engine_blocks: int,
    now_ms: int | None = None,
) -> bool:
    """The same for slots of the host tier, which the node counts on from its engine's blocks.

    So no grant for a slot is one for a block, although the data planes count both from 0.
    """
    try:
        blocks = [engine_blocks + slot for slot in unpack_blocks(packed_slots)]
        return verify_grant(key, transfer, grant, pack_blocks(blocks), now_ms)
    except (ValueError, struct.error):
        return False


def _mac(key: bytes, transfer: str, end: bytes, packed_blocks: bytes) -> bytes:
    name = transfer.encode("utf-8", "surrogatepass")
    text = len(name).to_bytes(8, "big") + name + end + packed_blocks
    return hmac.new(key, text, hashlib.sha256).digest()
