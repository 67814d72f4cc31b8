"""What a CUDA peer tells of itself."""

from __future__ import annotations

import msgspec

from kvferry.errors import BackendError
from kvferry_backends.identity import Identity
from kvferry_backends.pairing import decode_description
from kvferry_backends.peer.driver import HANDLE_BYTES

PROTOCOL = 2


class Allocation(msgspec.Struct, frozen=True):
    """One device allocation that holds spans."""

    handle: bytes
    """For CUDA IPC."""
    base: int
    """Its address in the source's own process."""
    size: int


class PlacedSpan(msgspec.Struct, frozen=True):
    """Block ``b`` lies at ``offset + b * stride`` of ``allocations[allocation]``."""

    allocation: int
    offset: int
    stride: int
    length: int


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer needs to map our blocks."""

    protocol: int
    process: Identity
    instance: str
    """One life of one backend object; a mapping belongs to exactly one."""
    blocks: int
    spans: tuple[PlacedSpan, ...]
    allocations: tuple[Allocation, ...]

    @property
    def widths(self) -> list[int]:
        """Bytes of a block in each span."""
        return [span.length for span in self.spans]


def decode(peer: bytes) -> PeerDescription:
    """A peer's description, checked.

    Raises:
        BackendError: not a description of this protocol, or one that points outside its own
            allocations: a kernel that read there would end this process's CUDA context.
    """
    found = decode_description(peer, PeerDescription, PROTOCOL, "peer")
    if any(len(allocation.handle) != HANDLE_BYTES for allocation in found.allocations):
        raise BackendError(f"a handle of the peer has not {HANDLE_BYTES} bytes")
    for index, span in enumerate(found.spans):
        known = 0 <= span.allocation < len(found.allocations)
        last = span.offset + (found.blocks - 1) * span.stride + span.length
        if (
            not known
            or min(span.offset, span.stride) < 0
            or span.length < 1
            or last > found.allocations[span.allocation].size
        ):
            raise BackendError(f"span {index} of the peer lies outside the memory that it shares")
    return found
