"""The worker side: each load is reported exactly once, whatever the puller does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.pools import Pool

from kvferry.errors import BackendError
from kvferry.node.pull.puller import PullJob, PullResult
from kvferry.ports.backend import Capabilities, Verify
from kvferry_backends.registry import LISTENING
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_connectors.vllm import planes, worker
from kvferry_connectors.vllm.metadata import FerryMetadata, LoadJob, SessionIdentity
from kvferry_connectors.vllm.options import parse
from kvferry_connectors.vllm.worker import WorkerSide

ME = SessionIdentity("p0", "tiny-0123456789ab", "b" * 16, {})


class Puller:
    """Takes jobs; the test says how they end."""

    def __init__(self) -> None:
        self.jobs: list[PullJob] = []
        self.cancelled: list[str] = []
        self.ready: list[PullResult] = []
        self.pin_ms = 0
        self.call_timeout_s = 0.0
        self.closed = False

    def submit(self, job: PullJob) -> None:
        self.jobs.append(job)

    def cancel(self, transfer: str) -> None:
        self.cancelled.append(transfer)

    def take(self) -> list[PullResult]:
        taken, self.ready = self.ready, []
        return taken

    def close(self) -> None:
        self.closed = True

    def end(self, name: str, *, ok: bool = True, failed: tuple[int, ...] = ()) -> None:
        self.ready.append(
            PullResult(transfer=f"t.{name}", request=name, ok=ok, failed_blocks=failed)
        )


class Bench:
    """Rank 1 of 2."""

    def __init__(self, **more: Any) -> None:
        self.puller = Puller()
        config = SimpleNamespace(parallel_config=SimpleNamespace(rank=1, world_size=2))
        options = parse({"key": "hex:" + "5a" * 32, "verify": "full", "pin_ms": 777, **more})
        self.side = WorkerSide(config, None, options, make_puller=self._make)

    def _make(
        self, client: Any, backends: Any, *, pin_ms: int, call_timeout_s: float, **more: Any
    ) -> Any:
        self.puller.pin_ms, self.puller.call_timeout_s = pin_ms, call_timeout_s
        return self.puller

    def load(self, *names: str, cancels: tuple[str, ...] = ()) -> None:
        jobs = [
            LoadJob(
                transfer=f"t.{name}",
                request=name,
                address="127.0.0.1:1",
                incarnation="a" * 16,
                hashes=(bytes(32), bytes([1]) * 32),
                start=3,
                target_blocks=(8, 9),
                deadline_ms=1500,
            )
            for name in names
        ]
        self.side.take(FerryMetadata(ME, jobs, [f"t.{name}" for name in cancels]))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_job_carries_what_the_scheduler_ordered(bench: Bench) -> None:
    bench.load("a")
    (job,) = bench.puller.jobs
    assert (job.rank, job.ranks, job.verify, job.deadline_s) == (1, 2, Verify.FULL, 1.5)
    assert (job.start, job.target_blocks, len(job.hashes)) == (3, (8, 9), 2)
    assert bench.puller.pin_ms == 777


@pytest.mark.parametrize(("pin_timeout_ms", "call_s"), [(100, 2.0), (5_000, 5.0)])
def test_a_rank_waits_as_long_for_an_answer_as_its_scheduler(
    pin_timeout_ms: int, call_s: float
) -> None:
    bench = Bench(pin_timeout_ms=pin_timeout_ms)
    bench.load("a")
    assert bench.puller.call_timeout_s == call_s


def test_each_load_is_reported_once(bench: Bench) -> None:
    bench.load("a", "b")
    assert bench.side.finished() == set()
    bench.puller.end("b")
    assert bench.side.finished() == {"b"}
    assert bench.side.finished() == set()
    bench.puller.end("b")  # A repetition, and one that nobody ordered: an unknown report kills.
    bench.puller.end("x")
    bench.puller.end("a")
    assert bench.side.finished() == {"a"}


def test_an_order_that_is_repeated_runs_once(bench: Bench) -> None:
    bench.load("a")
    bench.load("a")
    assert len(bench.puller.jobs) == 1


def test_failed_blocks_come_with_their_report_and_once(bench: Bench) -> None:
    bench.load("a", "b")
    bench.puller.end("a", ok=False, failed=(8, 9))
    bench.puller.end("b", failed=(11,))
    assert bench.side.failed_blocks() == set()
    assert bench.side.finished() == {"a", "b"}
    assert bench.side.failed_blocks() == {8, 9, 11}
    assert bench.side.failed_blocks() == set()


def test_results_go_to_the_scheduler_with_our_rank_once(bench: Bench) -> None:
    bench.load("a")
    bench.puller.end("a", ok=False)
    bench.side.finished()
    meta = bench.side.worker_meta(hello=False)
    assert meta is not None
    ((rank, ok, request),) = [(r.rank, r.ok, r.request) for r in meta.results]
    assert (rank, ok, request) == (1, False, "a")
    assert bench.side.worker_meta(hello=False) is None


def test_only_open_loads_are_cancelled(bench: Bench) -> None:
    bench.load(cancels=("a",))
    assert bench.puller.cancelled == []
    bench.load("a")
    bench.load(cancels=("a", "x"))
    assert bench.puller.cancelled == ["t.a"]
    bench.puller.end("a", ok=False)
    assert bench.side.finished() == {"a"}
    bench.load(cancels=("a",))
    assert bench.puller.cancelled == ["t.a"]


def test_closing_closes_the_puller(bench: Bench) -> None:
    bench.side.close()
    assert not bench.puller.closed  # There was none yet.
    bench.load("a")
    bench.side.close()
    assert bench.puller.closed


class Refusing:
    """A data plane that meets memory it cannot share, as CUDA IPC meets sleep mode."""

    name = "peer"
    capabilities = Capabilities(
        memory=frozenset({"host"}), one_sided=True, same_host_only=True, fence="none"
    )
    closed = False

    def register(self, regions: Any, authorize: Any) -> None:
        raise BackendError("CUDA IPC cannot share the KV cache")

    def close(self) -> None:
        self.closed = True


def registered(monkeypatch: pytest.MonkeyPatch, *backends: Any) -> WorkerSide:
    pool = Pool(4, [4096])
    monkeypatch.setattr(worker.compat, "one_full_attention_group", lambda config: "")
    monkeypatch.setattr(worker, "regions_of", lambda caches, config: pool.regions)
    monkeypatch.setattr(worker, "worker_components", lambda config, caches: {})
    monkeypatch.setattr(planes, "create_usable", lambda order, options, left_out: list(backends))
    side = Bench().side
    side.register({})
    return side


def test_a_data_plane_that_cannot_share_the_cache_leaves_the_others_to_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = Refusing()
    side = registered(monkeypatch, refusing, TcpBackend({}))
    hello = side.hello
    assert hello is not None
    assert hello.problem == ""
    assert list(hello.backends) == ["tcp"]
    assert hello.left_out == {"peer": "CUDA IPC cannot share the KV cache"}
    assert refusing.closed
    side.close()


def test_host_memory_is_read_directly_by_default_and_tcp_stands_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(4, [4096])
    monkeypatch.setattr(worker.compat, "one_full_attention_group", lambda config: "")
    monkeypatch.setattr(worker, "regions_of", lambda caches, config: pool.regions)
    monkeypatch.setattr(worker, "worker_components", lambda config, caches: {})
    side = Bench().side
    side.register({})
    assert side.hello is not None
    assert list(side.hello.backends) == ["peer_host", "tcp"]
    side.close()


def test_without_any_data_plane_the_engine_serves_alone_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hello = registered(monkeypatch, Refusing()).hello
    assert hello is not None
    assert "no data plane works here: peer: CUDA IPC cannot share" in hello.problem


def test_every_data_plane_that_listens_is_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, dict[str, object]] = {}

    def usable(order: Any, options: Any, left_out: Any) -> list[Any]:
        told.update(options)
        return [TcpBackend({})]

    monkeypatch.setattr(worker.compat, "one_full_attention_group", lambda config: "")
    monkeypatch.setattr(worker, "regions_of", lambda caches, config: Pool(4, [4096]).regions)
    monkeypatch.setattr(worker, "worker_components", lambda config, caches: {})
    monkeypatch.setattr(planes, "create_usable", usable)
    side = Bench(host="10.0.0.7", backends=["peer_host", "nixl", "nccl", "tcp"]).side
    side.register({})
    side.close()
    listening = {name for name, options in told.items() if options == {"listen_host": "10.0.0.7"}}
    assert listening == LISTENING
    assert told["peer_host"] == {}


@pytest.mark.parametrize("name", ["nixl", "tpc"])
def test_options_of_a_data_plane_that_is_not_started_are_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(4, [4096])
    monkeypatch.setattr(worker.compat, "one_full_attention_group", lambda config: "")
    monkeypatch.setattr(worker, "regions_of", lambda caches, config: pool.regions)
    monkeypatch.setattr(worker, "worker_components", lambda config, caches: {})
    side = Bench(backends=["tcp"], backend_options={name: {"ring": 1}}).side
    side.register({})
    assert side.hello is not None
    assert f"there are options for {name}" in side.hello.problem
    side.close()
