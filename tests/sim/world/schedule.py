"""Which requests run in a step, and in which blocks: vLLM's rules, small."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from tests.sim.checks import engine as engine_check
from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel
from tests.sim.world.pool import Block, Pool
from tests.sim.world.request import BLOCK_TOKENS, Request, Status

STEP_TOKENS_MAX = 4 * BLOCK_TOKENS
LONG_PREFILL_TOKENS = 100
"""No whole number of blocks: a step may end inside one."""


class Schedule:
    """The queues and blocks of one engine core.

    Attributes:
        hooks: the connector's scheduler side.
        requests: those that did not end, by id.
        loads: requests whose load is not reported yet, with the blocks that it fills.
    """

    def __init__(self, name: str, kernel: Kernel, pool: Pool, violations: Violations) -> None:
        self.name, self.kernel, self.pool = name, kernel, pool
        self.hooks: Any = None
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loads: dict[str, tuple[Request, list[int]]] = {}
        self.arrivals: dict[str, int] = {}
        """How many ranks have reported a load, by request."""
        self.violations = violations

    def hook(self, name: str) -> AbstractContextManager[None]:
        """Around each call of the connector."""
        return engine_check.hook(self.violations, self.kernel, self.name, name)

    def release(self, request: Request) -> None:
        """The request gives its blocks back, the last one first."""
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks = []

    def choose(self) -> tuple[Any, dict[str, int]]:
        """What runs in this step; and the tokens with KV that each request has before it."""
        step = _Step()
        self._run_on(step)
        skipped: list[Request] = []
        # Requests that hold blocks go first, or they and one that needs these wait for ever.
        self.waiting.sort(key=lambda request: not request.blocks)
        while self.waiting and step.budget > 0 and not step.preempted:
            request = self.waiting.pop(0)
            was = request.status
            count = self._admit(request, step.budget, skipped)
            if count is None:
                self.waiting.insert(0, request)
                break
            if count:
                step.add(request, count, resumed=was is Status.PREEMPTED)
                self._cache(request, request.num_computed_tokens + count)
        self.waiting = skipped + self.waiting
        return step.output(), step.before

    def _run_on(self, step: _Step) -> None:
        """Requests that run already go first; the last of them gives way when blocks run out."""
        for request in list(self.running):
            if request not in self.running:
                continue  # Preempted by one before it.
            count = min(request.num_tokens - request.num_computed_tokens, step.budget)
            count = min(count, LONG_PREFILL_TOKENS)
            if count <= 0:
                continue
            added = self._grow(request, request.num_computed_tokens + count, step.preempted)
            if added is not None:
                step.go_on(request, count, added)
                self._cache(request, request.num_computed_tokens + count)
        step.drop_preempted()

    def _admit(self, request: Request, budget: int, skipped: list[Request]) -> int | None:
        """Tokens to schedule of a waiting request; 0 if it waits aside, None if no room is left."""
        if request.status is Status.WAITING_FOR_REMOTE_KVS:
            if not request.received:
                skipped.append(request)
                return 0
            self._promote(request)
        extra, hits, local = 0, [], request.num_computed_tokens
        if request.num_computed_tokens == 0:
            hits = self._cached_prefix(request)
            local = len(hits) * BLOCK_TOKENS
            with self.hook("get_num_new_matched_tokens"):
                found, _ = self.hooks.matched(request, local)
            if found is None:
                skipped.append(request)
                return 0
            extra = found
            if local + extra > request.num_tokens:
                self.violations.add("engine", f"{request.request_id} is promised beyond its end")
        count = 0 if extra else min(request.num_tokens - local, budget, LONG_PREFILL_TOKENS)
        whole = -(-(local + extra + count) // BLOCK_TOKENS)
        fresh = whole - len(hits) - len(request.blocks)
        idle = sum(block.ref_cnt == 0 for block in hits)
        if self._lacks_room(request, fresh + idle, len(hits), idle, loads=extra > 0):
            return None
        self.pool.touch(hits)
        request.blocks += hits
        if fresh > 0:
            request.blocks += self.pool.get_new_blocks(fresh)
        with self.hook("update_state_after_alloc"):
            self.hooks.allocated(request, _Blocks(request.blocks), extra)
        request.num_computed_tokens = local + extra
        if extra:
            request.status, request.received = Status.WAITING_FOR_REMOTE_KVS, False
            first = local // BLOCK_TOKENS
            targets = [b.block_id for b in request.blocks[first : (local + extra) // BLOCK_TOKENS]]
            self.loads[request.request_id] = (request, targets)
            self.arrivals[request.request_id] = 0
            skipped.append(request)
            return 0
        request.status = Status.RUNNING
        self.running.append(request)
        return count

    def _lacks_room(
        self, request: Request, needed: int, hits: int, idle: int, *, loads: bool
    ) -> bool:
        """A request is admitted if all of its prompt fits, and a load only if what other prefills
        still need stays free: it holds its blocks and cannot be preempted."""
        free = self.pool.get_num_free_blocks()
        if not request.blocks:
            needed = max(needed, _whole(request) - hits + idle)
        if loads:
            others = [r for r in self.requests.values() if r.blocks and r is not request]
            needed += sum(max(0, _whole(one) - len(one.blocks)) for one in others)
        return needed > free

    def _promote(self, request: Request) -> None:
        """Its load ended: what arrived is in the cache from now on."""
        request.status = Status.WAITING
        if request.num_computed_tokens == 0:
            self.release(request)
            return
        self._cache(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1

    def _cached_prefix(self, request: Request) -> list[Block]:
        hits: list[Block] = []
        for chain in request.block_hashes[: (request.num_tokens - 1) // BLOCK_TOKENS]:
            found = self.pool.get_cached_block(chain, [0])
            if found is None:
                break
            hits += found
        return hits

    def _grow(self, request: Request, tokens: int, preempted: list[str]) -> list[Block] | None:
        """Blocks for so many tokens; None if the request itself had to give way."""
        fresh = -(-tokens // BLOCK_TOKENS) - len(request.blocks)
        while fresh > self.pool.get_num_free_blocks():
            with self.hook("has_pending_block_frees"):
                if self.hooks.block_frees_pending():
                    continue
            victim = self.running.pop()
            self.release(victim)
            victim.num_computed_tokens = 0
            victim.status = Status.PREEMPTED
            preempted.append(victim.request_id)
            self.waiting.insert(0, victim)
            if victim is request:
                return None
        added = self.pool.get_new_blocks(fresh) if fresh > 0 else []
        request.blocks += added
        return added

    def _cache(self, request: Request, tokens: int) -> None:
        for at in range(min(tokens // BLOCK_TOKENS, len(request.block_hashes))):
            block = request.blocks[at]
            if block.block_hash is None:
                self.pool.cache(block, request.block_hashes[at])


def _whole(request: Request) -> int:
    """Blocks of all its tokens."""
    return -(-request.num_tokens // BLOCK_TOKENS)


class _Step:
    """What vLLM calls the scheduler output, while it is put together."""

    def __init__(self) -> None:
        self.budget = STEP_TOKENS_MAX
        self.scheduled: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self.preempted: list[str] = []
        self._new: list[Any] = []
        self._cached: list[tuple[str, Any]] = []
        self._resumed: list[str] = []

    def go_on(self, request: Request, count: int, added: list[Block]) -> None:
        self._count(request, count)
        ids = ([block.block_id for block in added],) if added else None
        self._cached.append((request.request_id, ids))

    def add(self, request: Request, count: int, *, resumed: bool) -> None:
        self._count(request, count)
        name, ids = request.request_id, ([block.block_id for block in request.blocks],)
        if resumed:
            self._resumed.append(name)
            self._cached.append((name, ids))
        else:
            before = self.before[name]
            self._new.append(
                SimpleNamespace(req_id=name, num_computed_tokens=before, block_ids=ids)
            )

    def drop_preempted(self) -> None:
        for name in self.preempted:
            self.budget += self.scheduled.pop(name, 0)
            self.before.pop(name, None)
        self._cached = [one for one in self._cached if one[0] not in self.preempted]

    def output(self) -> Any:
        return SimpleNamespace(
            num_scheduled_tokens=self.scheduled,
            total_num_scheduled_tokens=sum(self.scheduled.values()),
            preempted_req_ids=self.preempted,
            scheduled_new_reqs=self._new,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[name for name, _ in self._cached],
                new_block_ids=[ids for _, ids in self._cached],
                resumed_req_ids=self._resumed,
            ),
        )

    def _count(self, request: Request, count: int) -> None:
        self.before[request.request_id] = request.num_computed_tokens
        self.scheduled[request.request_id] = count
        self.budget -= count


class _Blocks:
    """What vLLM hands to ``update_state_after_alloc``."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks

    def get_block_ids(self) -> tuple[list[int]]:
        return ([block.block_id for block in self._blocks],)
