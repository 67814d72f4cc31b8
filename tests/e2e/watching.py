"""Who waits for KV blocks in a vLLM scheduler, for whose, who holds them while they load, and what
leases cost its thread; used inside engine processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Waits:
    """What happened at the scheduler's allocations since the watch began."""

    preempted: int = 0
    refused: int = 0
    """Allocations for waiting requests that found too few free blocks."""
    in_the_way: int = 0
    """Most blocks at such a moment that no request held and no reader had pinned."""


class AllocationWatch:
    """Counts what the scheduler cannot allocate, without changing what it does."""

    def __init__(self, scheduler: Any, side: Any) -> None:
        """``side`` is kvferry's scheduler side; None for an engine without kvferry."""
        self.waits = Waits()
        self._scheduler = scheduler
        self._side = side
        self._manager = scheduler.kv_cache_manager
        self._allocate = self._manager.allocate_slots
        self._preempt = scheduler._preempt_request
        self._manager.allocate_slots = self._watched_allocate
        scheduler._preempt_request = self._watched_preempt

    def _watched_allocate(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = self._allocate(request, *args, **kwargs)
        if blocks is None and request.status.name != "RUNNING":
            self.waits.refused += 1
            self.waits.in_the_way = max(self.waits.in_the_way, self._in_the_way())
        return blocks

    def _watched_preempt(self, *args: Any, **kwargs: Any) -> Any:
        self.waits.preempted += 1
        return self._preempt(*args, **kwargs)

    def _in_the_way(self) -> int:
        (managed,) = self._manager.coordinator.single_type_managers
        held = {b.block_id for blocks in managed.req_to_blocks.values() for b in blocks}
        used = {b.block_id for b in self._manager.block_pool.blocks if b.ref_cnt > 0}
        pinned = self._side._table.pinned_blocks() if self._side is not None else set()
        null = {self._manager.block_pool.null_block.block_id}
        return len(used - held - pinned - null)


class LeasingWatch:
    """Adds up the CPU time that an engine's thread spends on leases."""

    ENTRIES = ("offered", "session_ended", "each_step", "until_free", "make_room")

    def __init__(self, leasing: Any) -> None:
        """``leasing`` is that of kvferry's exports."""
        self.spent_s = 0.0
        self._inside = False
        for name in self.ENTRIES:
            setattr(leasing, name, self._timed(getattr(leasing, name)))

    def _timed(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # One calls another.
                return entry(*args, **kwargs)
            self._inside, began_s = True, time.thread_time()
            try:
                return entry(*args, **kwargs)
            finally:
                self.spent_s += time.thread_time() - began_s
                self._inside = False

        return timed


class LoadWatch:
    """Adds up for how long blocks were allocated that a load had not filled yet."""

    def __init__(self, pulls: Any) -> None:
        """``pulls`` are those of kvferry's scheduler side."""
        self.block_s = 0.0
        self._begun: dict[str, tuple[int, float]] = {}
        self._commit, self._end = pulls.commit, pulls.end
        pulls.commit, pulls.end = self._watched_commit, self._watched_end

    def _watched_commit(self, tracked: Any, local_blocks: int, targets: list[int]) -> Any:
        self._begun[tracked.id] = (len(targets), time.perf_counter())
        return self._commit(tracked, local_blocks, targets)

    def _watched_end(self, tracked: Any, outcome: Any) -> None:
        blocks, since = self._begun.pop(tracked.id)
        self.block_s += blocks * (time.perf_counter() - since)
        self._end(tracked, outcome)
