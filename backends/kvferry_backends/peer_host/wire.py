"""What a host-memory peer tells of itself."""

from __future__ import annotations

import msgspec

from kvferry.ports.backend import Span
from kvferry_backends.identity import Identity
from kvferry_backends.pairing import decode_description

PROTOCOL = 1
NONCE_BYTES = 32


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer needs to read our blocks."""

    protocol: int
    process: Identity
    instance: str
    """One life of one backend object."""
    nonce_address: int
    nonce: bytes
    """Random bytes at that address for as long as the blocks are served: who finds them there
    reads the right process, and may."""
    spans: tuple[Span, ...]
    """Where the blocks lie in the owner's address space."""
    blocks: int


def decode(peer: bytes) -> PeerDescription:
    """
    Raises:
        BackendError: not a description of this protocol.
    """
    return decode_description(peer, PeerDescription, PROTOCOL, "peer_host")
