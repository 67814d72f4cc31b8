"""One engine process: the shipped connector, both sides, around a simulated engine."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from tests.sim.checks import leases
from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel, Process
from tests.sim.kernel.network import Network
from tests.sim.kernel.threads import Event
from tests.sim.world.engine import Engine
from tests.sim.world.knobs import Knobs
from tests.sim.world.memory import Memory
from tests.sim.world.plane import Plane, Planes, Traits
from tests.sim.world.pool import Pool
from tests.sim.world.request import BLOCK_TOKENS, Request

from kvferry_connectors.vllm.joined import Joiner
from kvferry_connectors.vllm.metadata import RankHello
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.scheduler import SchedulerSide
from kvferry_connectors.vllm.worker import WorkerSide

CLUSTER_KEY = "hex:" + "5a" * 32
PEER_PORT = 7_400
"""Where every node's peers find it, if it is not to be chosen anew for each process."""


class FullAttentionSpec:
    """Only its name is looked at."""


class SimWorker(WorkerSide):
    """The shipped worker side with memory that is no tensor."""

    def register_planes(self, planes: list[Plane]) -> None:
        """In place of ``register``, which reads tensors."""
        self._backends = list(planes)
        for plane in planes:
            plane.register(None, self._authorize)
        self.hello = RankHello(
            rank=self._rank,
            ranks=self._ranks,
            key=self._key,
            backends={plane.name: plane.describe() for plane in planes},
            left_out={},
            components={"layout": "sim"},
            block_bytes=1,
        )


def probe_without_engine(joiner: Joiner) -> bytes | None:
    """In place of a block hashed by vLLM's own function."""
    return b"p" * 32


class Node:
    """A node's process, from its start to its death.

    Attributes:
        up: set once it has joined its space.
        side: the scheduler side, for checkers.
        leased: every lease that began.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        network: Network,
        planes: Planes,
        knobs: Knobs,
        violations: Violations,
        *,
        life: int,
    ) -> None:
        self.name, self.kernel = name, kernel
        self.process = Process(kernel, name)
        self.process.rng.seed(f"{kernel.seed}/{name}/{life}")
        self.process.at_kill += [self._killed, lambda: network.vanish(self.process)]
        self.life = f"{name}.{life}"
        self.knobs, self._planes, self._violations = knobs, planes, violations
        self.up = False
        self.closed = False
        self.side: SchedulerSide | None = None
        self.leased: list[str] = []
        self.workers: list[SimWorker] = []
        self.pool = Pool(knobs.blocks)
        self.memories = [
            Memory(f"{name}/{rank}", knobs.blocks, violations) for rank in range(knobs.ranks)
        ]
        self.engine = Engine(
            name,
            kernel,
            self.pool,
            self.memories,
            violations,
            step_s=knobs.step_s,
            on_finished=self._finished,
        )
        self._inbox: deque[tuple[str, Any]] = deque()
        self._answers: dict[str, Any] = {}
        self._called = Event()
        self._stop = False
        kernel.spawn(self.process, f"{name}:engine", self._main)

    # --- from other processes, by kernel callbacks ------------------------------------------

    def submit(self, request: Request, answer: Any) -> None:
        """A request arrives; ``answer(request, params)`` is called at its end, None if it dies."""
        if not self.process.alive or self._stop:
            answer(None, {})
            return
        self._answers[request.request_id] = answer
        self._tell("add", request)

    def abort(self, request_id: str) -> None:
        self._tell("abort", request_id)

    def reset_cache(self) -> None:
        """An operator resets the prefix cache."""
        self._tell("reset", None)

    def stop(self) -> None:
        """A clean end."""
        self._tell("stop", None)

    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._inbox and not self.engine.busy

    def poke(self) -> None:
        """An idle engine ends no lease before its next step; this makes it take one."""
        self._tell("poke", None)

    # --- the engine's thread ----------------------------------------------------------------

    def _main(self) -> None:
        self._build()
        while True:
            while self._inbox:
                self._handle(*self._inbox.popleft())
            if self._stop and not self.engine.busy:
                break
            if self.engine.busy:
                self.engine.step()
            else:
                self._called.clear()
                if not self._inbox:
                    self._called.wait()
        assert self.side is not None
        self.side.close()
        for worker in self.workers:
            worker.close()
        self.closed = True
        self.process.kill()

    def _build(self) -> None:
        options = self._options()
        configs = [self._config(rank) for rank in range(self.knobs.ranks)]
        cache = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec())],
            num_blocks=self.knobs.blocks,
        )
        self.side = side = SchedulerSide(configs[0], cache, options, multi=False)
        side.bind(self.pool)
        self.engine.hooks = side
        for rank, config in enumerate(configs):
            worker = SimWorker(config, cache, options)
            worker.register_planes(
                [
                    Plane(self._planes, self.process, self.memories[rank], f"{self.life}/{rank}", t)
                    for t in self.traits()
                ]
            )
            self.workers.append(worker)
            assert worker.hello is not None
            side.hello(worker.hello)
        self.engine.workers = list(self.workers)
        if side._exports is not None:
            self.leased = leases.watch(self.name, side._exports.leasing, self._violations)

    def traits(self) -> list[Traits]:
        knobs = self.knobs
        return [
            Traits(
                name=name,
                one_sided=one_sided,
                block_s=knobs.block_s,
                fail_share=knobs.read_fails,
                hang_share=knobs.read_hangs,
                hang_s=knobs.hang_s,
            )
            for name, one_sided in knobs.planes
        ]

    def _handle(self, what: str, given: Any) -> None:
        if what == "add":
            self.engine.add(given)
        elif what == "abort":
            self.engine.abort(given)
        elif what == "poke":
            self.engine.step()
        elif what == "reset":
            if self.pool.reset_prefix_cache():
                with self.engine.hook("reset_cache"):
                    self.engine.hooks.reset_cache()
            else:
                self.engine.hooks.reset_cache()
                self.pool.reset_prefix_cache()
        elif what == "stop":
            self._stop = True

    def _finished(self, request: Request, params: dict[str, Any]) -> None:
        answer = self._answers.pop(request.request_id, None)
        if answer is not None:
            answer(request, params.get("kvferry", {}))

    def _tell(self, what: str, given: Any) -> None:
        self._inbox.append((what, given))
        self._called.set()

    def _killed(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            self.kernel.after(0.001, _failing(answer))

    # --- what it is made of -----------------------------------------------------------------

    def _options(self) -> Options:
        knobs = self.knobs
        return Options(
            nats_url="nats://ledger:4222" if knobs.ledger else "",
            node=self.name,
            model_id="sim",
            key=CLUSTER_KEY,
            host=self.name,
            peer_port=PEER_PORT if knobs.fixed_ports else 0,
            pin_timeout_ms=knobs.pin_timeout_ms,
            pin_ms=knobs.pin_ms,
            transfer_timeout_ms=knobs.transfer_timeout_ms,
            handover_timeout_ms=knobs.handover_timeout_ms,
            lease_budget=knobs.lease_budget,
            lease_ms=knobs.lease_ms,
            hint_ttl_s=60,
        )

    def _config(self, rank: int) -> Any:
        return SimpleNamespace(
            cache_config=SimpleNamespace(
                block_size=BLOCK_TOKENS,
                prefix_caching_hash_algo="sha256_cbor",
                enable_prefix_caching=True,
                cache_dtype="auto",
            ),
            parallel_config=SimpleNamespace(
                world_size=self.knobs.ranks,
                rank=rank,
                tensor_parallel_size=self.knobs.ranks,
                pipeline_parallel_size=1,
            ),
            model_config=SimpleNamespace(
                dtype="bfloat16", quantization=None, hf_text_config=SimpleNamespace()
            ),
            scheduler_config=SimpleNamespace(
                long_prefill_token_threshold=128, max_num_batched_tokens=256
            ),
            kv_transfer_config=SimpleNamespace(engine_id=self.name),
            speculative_config=None,
            max_concurrent_batches=1,
        )


def _failing(answer: Any) -> Any:
    return lambda: answer(None, {})
