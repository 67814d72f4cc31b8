"""What copies whole blocks between an engine's pool and its host pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions


class Mover(Protocol):
    """Copies blocks of one engine's pool. Used by one thread, but for :meth:`point`.

    The engine goes on meanwhile; a call returns when every byte is in place.
    """

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy ``blocks[i]`` of the engine's pool, whose KV is complete, into ``slots[i]``."""
        ...

    def to_engine(self, slots: Sequence[int], blocks: Sequence[int], point: Any) -> None:
        """Copy ``slots[i]`` into ``blocks[i]``, once the device has passed ``point``."""
        ...

    def point(self) -> Any:
        """What the engine has queued so far: a step under way may still write blocks that it has
        given up since. Called by the engine's thread; costs some microseconds at most."""
        ...


def make_mover(engine: Regions, pool: Regions) -> Mover:
    """The mover between these two, which hold blocks of the same widths.

    Raises:
        BackendError: nobody can copy this kind of memory.
    """
    if engine.kind == "host":
        from kvferry_backends.host_tier.host import HostMover

        return HostMover(engine, pool)
    if engine.kind == "cuda":
        from kvferry_backends.host_tier.cuda import CudaMover

        return CudaMover(engine, pool)
    raise BackendError(f"no host tier for {engine.kind!r} memory, only for 'host' and 'cuda'")
