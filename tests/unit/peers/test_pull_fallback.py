"""A puller with several backends: probes, fallback within one transfer, and forgetting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.peers.fake_backend import FakeBackend
from tests.unit.peers.puller_bench import PATIENT, Bench, assert_failed
from tests.unit.peers.support import BOUND_S, eventually, serve

from kvferry.node.export.grants import pack_blocks, verify_grant
from kvferry.node.export.table import RankEndpoint
from kvferry.node.pull.jobs import PullJob, PullResult
from kvferry.node.pull.puller import Puller
from kvferry.ports.backend import ReadOutcome

BLOCKS = 64


class Pair:
    """A source and a target with the same two backends."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.quick, self.sure = FakeBackend("quick"), FakeBackend("sure")
        self.puller = Puller(
            self.bench.client, [self.quick, self.sure], block_bytes=1 << 20, **PATIENT
        )
        key = self.bench.source.keys[0]
        described = {"quick": b"quick of d0", "sure": b"sure of d0"}
        self.bench.source.table.set_ranks([RankEndpoint(key, described)])

    def job(self, name: str, blocks: int) -> PullJob:
        return self.bench.job(name, self.bench.source.offer(name, blocks))

    def pull(self, job: PullJob) -> PullResult:
        self.puller.submit(job)
        found: list[PullResult] = []

        def ended() -> bool:
            found.extend(self.puller.take())
            return bool(found)

        assert eventually(ended)
        return found[0]

    def arrived(self) -> set[int]:
        return set(self.quick.pool) | set(self.sure.pool)

    def close(self) -> None:
        self.puller.close()
        self.bench.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_a_large_first_transfer_measures_every_backend_on_blocks_of_its_own(pair: Pair) -> None:
    job = pair.job("t", BLOCKS)
    result = pair.pull(job)
    assert result.ok, result.detail
    assert (result.count, result.bytes) == (BLOCKS, 3 * BLOCKS)
    assert pair.arrived() == set(job.target_blocks)
    assert result.chosen is not None
    assert [one.backend for one in result.chosen.measured] == ["quick", "sure"]
    assert result.chosen.backend in {"quick", "sure"}
    assert result.backend == result.chosen.backend
    both = set(pair.quick.pool) & set(pair.sure.pool)
    assert both == {job.target_blocks[0]}  # read by each, to set up what is set up once
    assert pair.bench.source.how() == [("t", "intact")]


def test_each_read_of_a_probe_has_a_grant_for_exactly_its_blocks(pair: Pair) -> None:
    assert pair.pull(pair.job("t", BLOCKS)).ok
    key = pair.bench.source.keys[0]
    for request in pair.quick.requests + pair.sure.requests:
        packed = pack_blocks(request.source_blocks)
        assert verify_grant(key, "t", request.grant, packed)
        assert not verify_grant(key, "t", request.grant, packed + packed[:4])


def test_the_choice_is_kept_for_the_next_transfers(pair: Pair) -> None:
    chosen = pair.pull(pair.job("a", BLOCKS)).chosen
    assert chosen is not None
    loser = pair.sure if chosen.backend == "quick" else pair.quick
    before = len(loser.requests)
    later = [pair.pull(pair.job(name, BLOCKS)) for name in ("b", "c")]
    assert [(one.ok, one.backend, one.chosen) for one in later] == 2 * [
        (True, chosen.backend, None)
    ]
    assert len(loser.requests) == before


def test_a_small_transfer_uses_the_preferred_one_and_asks_for_nothing_more(pair: Pair) -> None:
    result = pair.pull(pair.job("t", 4))
    assert (result.ok, result.backend) == (True, "quick")
    assert result.chosen is not None
    assert result.chosen.why == "first by preference, not measured"
    assert pair.sure.requests == []
    assert len(pair.quick.requests) == 1


@pytest.mark.parametrize("blocks", [4, BLOCKS])
def test_a_backend_that_cannot_post_is_replaced_in_the_same_transfer(
    pair: Pair, blocks: int
) -> None:
    pair.quick.refuse_post = "another host"
    job = pair.job("t", blocks)
    result = pair.pull(job)
    assert (result.ok, result.backend, result.bytes) == (True, "sure", 3 * blocks)
    assert set(pair.sure.pool) == set(job.target_blocks)
    assert result.chosen is not None
    assert result.chosen.backend == "sure"
    assert "quick is set aside for 5 s: another host" in result.chosen.why
    assert pair.bench.source.how() == [("t", "intact")]


@pytest.mark.parametrize("error", ["unreachable", "error", "deadline", "busy"])
def test_a_failed_read_is_fenced_and_then_goes_on_elsewhere(pair: Pair, error: str) -> None:
    pair.quick.outcome = ReadOutcome(error=error, detail="wire broke")
    result = pair.pull(pair.job("t", 4))
    assert (result.ok, result.backend, result.fence) == (True, "sure", "fake_fence")
    assert pair.quick.aborts == 1
    next_one = pair.pull(pair.job("u", 4))
    assert next_one.ok
    assert len(pair.quick.requests) == 1  # set aside: not even tried


@pytest.mark.parametrize("error", ["digest", "refused", "aborted"])
def test_what_another_backend_cannot_cure_ends_the_transfer(pair: Pair, error: str) -> None:
    pair.quick.outcome = ReadOutcome(error=error, detail="x")
    job = pair.job("t", 4)
    assert_failed(pair.pull(job), job, "read", error)
    assert pair.sure.requests == []


def test_no_other_backend_is_tried_without_a_fence(pair: Pair) -> None:
    pair.quick.outcome = ReadOutcome(error="error", detail="x")
    pair.quick.break_abort = True
    pair.quick.close = lambda: (_ for _ in ()).throw(ZeroDivisionError("a defect"))  # type: ignore[method-assign]
    job = pair.job("t", 4)
    result = pair.pull(job)
    assert_failed(result, job, "read", "error")
    assert result.fence == ""
    assert pair.sure.requests == []


def test_a_closed_backend_is_a_fence_and_the_next_one_goes_on(pair: Pair) -> None:
    pair.quick.outcome = ReadOutcome(error="error", detail="x")
    pair.quick.break_abort = True
    result = pair.pull(pair.job("t", 4))
    assert (result.ok, result.backend, result.fence) == (True, "sure", "backend_closed")
    assert pair.quick.closed == 1


def test_the_next_backend_is_not_tried_when_the_source_is_gone(pair: Pair) -> None:
    pair.quick.gate.clear()
    job = pair.job("t", 4)
    pair.puller.submit(job)
    assert pair.quick.posted.wait(BOUND_S)
    pair.bench.server.close()
    pair.quick.outcome = ReadOutcome(error="unreachable", detail="gone")
    pair.quick.gate.set()
    found: list[PullResult] = []
    assert eventually(lambda: bool(found.extend(pair.puller.take()) or found))
    assert_failed(found[0], job, "read", "unreachable")
    assert pair.sure.requests == []


def test_all_backends_failing_is_one_failure_with_the_last_reason(pair: Pair) -> None:
    pair.quick.refuse_post = "first"
    pair.sure.refuse_post = "second"
    job = pair.job("t", BLOCKS)
    result = pair.pull(job)
    assert_failed(result, job, "read", "error")
    assert result.detail == "second"
    assert eventually(lambda: pair.bench.source.how() == [("t", "abort")])


def test_a_block_reused_after_the_probe_still_makes_it_void(pair: Pair) -> None:
    pair.quick.gate.clear()
    job = pair.job("t", BLOCKS)
    pair.puller.submit(job)
    assert pair.quick.posted.wait(BOUND_S)
    pair.bench.source.table.reused(1)
    pair.quick.gate.set()
    found: list[PullResult] = []
    assert eventually(lambda: bool(found.extend(pair.puller.take()) or found))
    assert_failed(found[0], job, "settle", "void")


@pytest.mark.parametrize("successor", [False, True])
def test_backends_forget_a_source_whose_process_has_ended(pair: Pair, successor: bool) -> None:
    assert pair.pull(pair.job("a", 4)).ok
    assert pair.quick.forgotten == []
    job = pair.job("b", 4)
    port = int(pair.bench.server.address.rpartition(":")[2])
    pair.bench.server.close()
    if successor:
        pair.bench.server = serve(pair.bench.source, port=port, life="dddddddddddddddd")
    assert not pair.pull(job).ok
    assert pair.quick.forgotten == [b"quick of d0"]
    assert pair.sure.forgotten == [b"sure of d0"]
