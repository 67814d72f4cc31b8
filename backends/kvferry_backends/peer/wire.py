"""What a CUDA peer tells of itself, and which host it is on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvferry.errors import BackendError, BackendUnavailable

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


def host_id() -> str:
    """This machine since its last boot: handles of another one mean nothing here.

    Raises:
        BackendUnavailable: the kernel does not tell.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise BackendUnavailable(f"the kernel's boot id cannot be read: {error}") from error


def decode(peer: bytes) -> PeerDescription:
    """
    Raises:
        BackendError: not a description of this protocol.
    """
    try:
        found = msgspec.msgpack.decode(peer, type=PeerDescription)
    except msgspec.MsgspecError as error:
        raise BackendError(f"the peer's description cannot be read: {error}") from error
    if found.protocol != PROTOCOL:
        raise BackendError(f"the peer speaks protocol {found.protocol}, we speak {PROTOCOL}")
    return found
