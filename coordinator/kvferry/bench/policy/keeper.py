"""What a retention policy is told and asked, and the two that keep nothing on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvferry.bench.policy.hosts import Host, LruHost
from kvferry.replay.trace import Turn

if TYPE_CHECKING:
    from kvferry.bench.policy.engine import Engine
    from kvferry.bench.policy.fleet import Job


class Keeper(Protocol):
    """A policy on one engine. The engine's own cache works the same under all of them."""

    host: Host | None
    """The engine's host memory; None without one."""

    def left(self, engine: Engine, job: Job, *, read: bool) -> None:
        """A request ended; its chain is ready, still held, and given back right after.

        ``read``: another engine has read it already.
        """
        ...

    def read(self, engine: Engine, turn: Turn, blocks: int) -> None:
        """Another engine has read so many blocks of the chain of ``turn``."""
        ...

    def room(self, engine: Engine, blocks: int) -> None:
        """A waiting request needs ``blocks`` free ones: let go of what may go."""
        ...

    def reused(self, engine: Engine, block: int) -> None:
        """The engine's memory lost a block; it is counted already."""
        ...


class CacheOnly:
    """Only what the engine's own cache happens to keep."""

    def __init__(self) -> None:
        self.host: Host | None = None

    def left(self, engine: Engine, job: Job, *, read: bool) -> None:
        """The cache has it."""

    def read(self, engine: Engine, turn: Turn, blocks: int) -> None:
        """The cache does not care."""

    def room(self, engine: Engine, blocks: int) -> None:
        """Nothing is kept."""

    def reused(self, engine: Engine, block: int) -> None:
        """It is gone."""


class CacheAndHost(CacheOnly):
    """What the engine's cache drops goes to host memory, where the last used stay."""

    def __init__(self, engine: Engine, capacity: int) -> None:
        super().__init__()
        self.store = LruHost(capacity, lambda block: engine.shared.copies.went(block, "host_full"))
        self.host = self.store

    def reused(self, engine: Engine, block: int) -> None:
        if self.store.has(block):
            self.store.touch((block,))
            return
        engine.shared.copies.came((block,))
        engine.shared.links.save(engine.name, engine.shared.block_bytes, engine.now_s)
        self.store.put(block)
