"""What a CUDA peer tells of itself."""

from __future__ import annotations

import msgspec

from kvferry_backends.pairing import decode_description

PROTOCOL = 1


class Allocation(msgspec.Struct, frozen=True):
    """One device allocation that holds spans, as ``torch`` shares it over CUDA IPC."""

    share: tuple[object, ...]
    """What ``UntypedStorage._share_cuda_`` gave, its leading device index left out."""
    base: int
    """Address of the storage's first byte in the owner's address space."""
    size: int


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer needs to map our blocks."""

    protocol: int
    host: str
    instance: str
    """One life of one backend object; a mapping belongs to exactly one."""
    blocks: int
    spans: tuple[tuple[int, int, int, int], ...]
    """Allocation index, offset from its base, stride, length."""
    allocations: tuple[Allocation, ...]


def decode(peer: bytes) -> PeerDescription:
    """
    Raises:
        BackendError: not a description of this protocol.
    """
    return decode_description(peer, PeerDescription, PROTOCOL, "peer")
