"""The names of things: plain strings and bytes with a type each, so that mypy tells them apart."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NewType

NodeName = NewType("NodeName", str)
"""An engine instance under a name that outlives its process, for example ``p0``."""

SpaceId = NewType("SpaceId", str)
"""Nodes whose KV is interchangeable: ``<model slug>-<12 hex digits of the fingerprint>``."""

Incarnation = NewType("Incarnation", str)
"""One process life of a node: 16 hex digits. Guards memory."""

TransferId = NewType("TransferId", str)
"""One attempt to move blocks, ``<target incarnation>.<counter>``."""

OfferId = NewType("OfferId", str)
"""One offer or lease of a node, ``<incarnation>.<counter>``."""

RequestId = NewType("RequestId", str)
"""A request as the engine names it."""

ChainHash = NewType("ChainHash", bytes)
"""The engine's own block hash, 32 bytes. It commits to every token before the block."""

HASH_BYTES = 32
SHORT_BYTES = 8
SAMPLE_TOKENS = 128
"""Ledger, plans and index carry one hash per so many tokens (each block if blocks are larger)."""

ROUTER_SPACE = SpaceId("router")
"""The reserved space token under which nodes that share no KV write their facts: routers, and
prefill engines that only send to decode nodes of TileRT."""


def sample_stride(block_size: int) -> int:
    """Blocks between two sampled hashes for blocks of ``block_size`` tokens."""
    return max(1, SAMPLE_TOKENS // block_size)


def short_hashes(hashes: Sequence[bytes], stride: int) -> bytes:
    """The first 8 bytes of every ``stride``-th hash, joined.

    Sample ``i`` belongs to block ``(i + 1) * stride - 1``, so that it commits to the
    ``(i + 1) * stride`` blocks up to and including that one.
    """
    return b"".join(h[:SHORT_BYTES] for h in hashes[stride - 1 :: stride])


def unpack_short(blob: bytes) -> tuple[int, ...]:
    """``short_hashes`` back as integers.

    Raises:
        ValueError: the blob is not a whole number of 8-byte hashes.
    """
    if len(blob) % SHORT_BYTES:
        raise ValueError(f"{len(blob)} bytes are not a whole number of {SHORT_BYTES}-byte hashes")
    return struct.unpack(f">{len(blob) // SHORT_BYTES}Q", blob)


def pack_short(values: Iterable[int]) -> bytes:
    """The reverse of :func:`unpack_short`."""
    items = tuple(values)
    return struct.pack(f">{len(items)}Q", *items)
