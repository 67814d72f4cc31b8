"""What a source may answer when it is asked whether blocks may be sent."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence

from kvferry.ports.backend import Authorize

KEY = b"a key that only the source has"


def sign(transfer: str, blocks: Sequence[int]) -> bytes:
    """The grant of exactly these blocks."""
    return _mac(transfer, struct.pack(f"<{len(blocks)}I", *blocks))


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


def deny(transfer: str, grant: bytes, packed: bytes) -> bool:
    return False


def signed(transfer: str, grant: bytes, packed: bytes) -> bool:
    return hmac.compare_digest(grant, _mac(transfer, packed))


def broken(transfer: str, grant: bytes, packed: bytes) -> bool:
    raise RuntimeError("the pin table is gone")


PERMITS: dict[str, Authorize] = {
    "allow": allow,
    "deny": deny,
    "signed": signed,
    "broken": broken,
}


def _mac(transfer: str, packed: bytes) -> bytes:
    return hmac.digest(KEY, transfer.encode() + packed, hashlib.sha256)
