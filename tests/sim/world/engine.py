"""An engine's scheduler, small but with vLLM's order of hooks and its rules of blocks.

It drives the shipped connector as vLLM does: ask for matched tokens, allocate, build the meta,
let the workers start loads, run the step, take in what the workers report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.checks.truth import reads_right
from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel
from tests.sim.world.memory import NOTHING, Memory
from tests.sim.world.pool import Pool
from tests.sim.world.request import BLOCK_TOKENS, Request, Status
from tests.sim.world.schedule import Schedule

EMPTY_STEP_S = 0.005
"""While requests wait for loads only. A real one takes less; nothing hangs on how much."""


class Engine(Schedule):
    """One engine core with one or more ranks.

    Attributes:
        workers: the connector's worker sides, one a rank.
        on_finished: called with each request that ended and the connector's reply parameters.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        pool: Pool,
        memories: list[Memory],
        violations: Violations,
        *,
        step_s: float,
        on_finished: Callable[[Request, dict[str, Any]], None],
    ) -> None:
        super().__init__(name, kernel, pool, violations)
        self.memories = memories
        self.step_s = step_s
        self.workers: list[Any] = []
        self.on_finished = on_finished

    # --- from outside the step --------------------------------------------------------------

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)
        with self.hook("on_new_request"):
            self.hooks.on_new_request(request)

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.finished:
            self._finish(request, Status.FINISHED_ABORTED)

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self.waiting or self.running or self.loads)

    # --- a step -----------------------------------------------------------------------------

    def step(self) -> None:
        output, computed_before = self.choose()
        with self.hook("build_connector_meta"):
            meta = self.hooks.build_meta(output)
        self._account_loads(meta)
        for worker in self.workers:
            with self.hook("start_load"):
                worker.take(meta)
        scheduled = output.num_scheduled_tokens
        for name, count in scheduled.items():
            self.requests[name].num_computed_tokens += count
        half_s = (self.step_s if scheduled else EMPTY_STEP_S) / 2
        self.kernel.sleep(half_s)
        for name, count in scheduled.items():
            self._forward(self.requests[name], computed_before[name], count)
        self.kernel.sleep(half_s)
        self._take_in(list(scheduled))

    def _forward(self, request: Request, start: int, count: int) -> None:
        """Attention reads every block before ``start``, and the new tokens' KV is written."""
        for rank, memory in enumerate(self.memories):
            read = request.blocks[: start // BLOCK_TOKENS]
            reads_right(
                self.violations,
                f"{request.request_id} on {self.name}, rank {rank},",
                [memory.tags[block.block_id] for block in read],
                request.block_hashes[: len(read)],
            )
            for at in range(start // BLOCK_TOKENS, -(-(start + count) // BLOCK_TOKENS)):
                full = (at + 1) * BLOCK_TOKENS <= start + count
                tag = request.block_hashes[at] if full else NOTHING
                memory.compute(request.blocks[at].block_id, tag)

    def _take_in(self, scheduled: list[str]) -> None:
        """The workers' reports, then the new tokens."""
        failed: set[int] = set()
        ended: list[str] = []
        metas = []
        for worker in self.workers:
            with self.hook("get_finished"):
                ended += sorted(worker.finished())
                failed |= worker.failed_blocks()
                metas.append(worker.worker_meta(hello=False))
        whole = self._whole(ended)
        self._invalidate(failed, whole)
        for name in scheduled:
            request = self.requests.get(name)
            if request is None or request.finished:
                continue
            if request.num_computed_tokens >= request.num_tokens:
                request.generate()
                if request.num_output_tokens >= request.max_tokens:
                    self._finish(request, Status.FINISHED_LENGTH_CAPPED)
        for meta in metas:
            if meta is not None:
                with self.hook("update_connector_output"):
                    self.hooks.worker_output(meta)
        for name in whole:
            self._loaded(name)

    def _whole(self, ended: list[str]) -> list[str]:
        """Requests whose load every rank has reported by now."""
        whole = []
        for name in ended:
            if name not in self.arrivals:
                self.violations.add("endings", f"{self.name}: a load of {name} nobody waits for")
                continue
            self.arrivals[name] += 1
            if self.arrivals[name] == len(self.workers):
                del self.arrivals[name]
                whole.append(name)
        return whole

    def _invalidate(self, failed: set[int], whole: list[str]) -> None:
        """Blocks that hold no valid KV shorten what their request has."""
        for request in [r for r, _ in self.loads.values()]:
            for at, block in enumerate(request.blocks):
                if block.block_id in failed:
                    most = at * BLOCK_TOKENS
                    request.num_computed_tokens = min(request.num_computed_tokens, most)
                    break
        for request in self.running:
            for block in request.blocks:
                if block.block_id in failed:
                    self.violations.add(
                        "endings", f"{request.request_id} runs with block {block.block_id}, failed"
                    )

    def _loaded(self, name: str) -> None:
        request, targets = self.loads.pop(name)
        for memory in self.memories:
            for block in targets:
                memory.loading.pop(block, None)
        request.received = True
        if request.finished:
            self.release(request)

    def _account_loads(self, meta: Any) -> None:
        for job in meta.loads:
            for memory in self.memories:
                for block in job.target_blocks:
                    memory.loading[block] = job.transfer

    def _finish(self, request: Request, status: Status) -> None:
        request.status = status
        for row in (self.waiting, self.running):
            if request in row:
                row.remove(request)
        del self.requests[request.request_id]
        with self.hook("request_finished"):
            ids = ([b.block_id for b in request.blocks],)
            delayed, params = self.hooks.finished(request, ids)
        assert not delayed
        if request.request_id not in self.loads:
            self.release(request)
        self.on_finished(request, params or {})
