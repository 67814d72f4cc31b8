"""What packs and unpacks the blocks of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions


class Packer(Protocol):
    """Packs the blocks of one pool. Used by several threads, each with lists of its own.

    ``slot`` is an address of at least ``(stop - start) * block_bytes`` bytes of memory of the
    pool's own kind and device, aligned to 64 bytes.
    """

    def listed(self, blocks: Sequence[int]) -> Any:
        """A transfer's blocks, brought to where :meth:`pack` and :meth:`unpack` read the ids.

        The ids are not checked: they must lie within the pool.
        """
        ...

    def pack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        """Copy the blocks at positions ``start`` to ``stop`` into the slot, in stream order."""
        ...

    def unpack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        """Copy the slot into the blocks at positions ``start`` to ``stop``."""
        ...


def make_packer(regions: Regions) -> Packer:
    """The packer of this pool.

    Raises:
        BackendError: nobody can pack this kind of memory, or the regions are no pool.
    """
    if regions.kind == "host":
        from kvferry_backends.packing.host import HostPacker

        return HostPacker(regions)
    if regions.kind == "cuda":
        from kvferry_backends.packing.cuda import CudaPacker

        return CudaPacker(regions)
    raise BackendError(f"{regions.kind!r} memory cannot be packed, only 'host' and 'cuda'")
