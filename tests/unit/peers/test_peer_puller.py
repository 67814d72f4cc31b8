"""The puller against a real peer server over real sockets, with a fake data plane."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.peers.fake_backend import FakeBackend
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    ManualClock,
    Source,
    chain,
    eventually,
    identity,
)

from kvferry.node.peer_client import PeerClient
from kvferry.node.peer_server import PeerServer
from kvferry.node.pins import pack_blocks, verify_grant
from kvferry.node.puller import Puller, PullJob, PullResult
from kvferry.node.wire import Abort, Ok, Refused, Renew
from kvferry.ports.backend import ReadOutcome, Verify


class Bench:
    """A source that serves, and a target's puller."""

    def __init__(self, ranks: int = 1, clock: ManualClock | None = None) -> None:
        self.source = Source(ranks=ranks, clock=clock)
        self.server = PeerServer(KEY, identity("d0", SOURCE_LIFE), self.source.table)
        self.server.start()
        self.client = PeerClient(KEY, identity("p0", TARGET_LIFE))
        self.backend = FakeBackend()
        self.puller = Puller(self.client, [FakeBackend("unknown-there"), self.backend])

    def job(self, transfer: str, hashes: tuple[bytes, ...], **changes: Any) -> PullJob:
        fields: dict[str, Any] = {
            "transfer": transfer,
            "request": f"request-of-{transfer}",
            "address": self.server.address,
            "incarnation": SOURCE_LIFE,
            "hashes": hashes,
            "start": 0,
            "target_blocks": tuple(range(100, 100 + len(hashes))),
            "rank": 0,
            "ranks": 1,
            "verify": Verify.OFF,
            "deadline_s": BOUND_S,
        }
        return PullJob(**{**fields, **changes})

    def pull(self, job: PullJob) -> PullResult:
        self.puller.submit(job)
        return self.results(1)[0]

    def results(self, count: int) -> list[PullResult]:
        found: list[PullResult] = []

        def enough() -> bool:
            found.extend(self.puller.take())
            return len(found) >= count

        assert eventually(enough)
        assert len(found) == count
        return found

    def close(self) -> None:
        self.backend.gate.set()
        self.puller.close()
        self.client.close()
        self.server.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def _assert_failed(result: PullResult, job: PullJob, stage: str, reason: str) -> None:
    assert not result.ok
    assert (result.stage, result.reason) == (stage, reason), result.detail
    assert result.failed_blocks == job.target_blocks
    assert result.count == 0


def test_a_pull_brings_every_block_and_says_what_it_took(bench: Bench) -> None:
    result = bench.pull(bench.job("t", bench.source.offer("a", 3, first_block=7)))
    assert result.ok
    assert (result.count, result.failed_blocks) == (3, ())
    assert (result.request, result.backend, result.stage, result.fence) == (
        "request-of-t",
        "fake",
        "",
        "",
    )
    assert (result.bytes, result.verified_blocks) == (9, 3)
    assert min(result.pin_ms, result.read_ms, result.settle_ms) > 0
    assert result.total_ms >= result.pin_ms + result.read_ms + result.settle_ms
    assert bench.backend.pool == {100: b"kv7", 101: b"kv8", 102: b"kv9"}
    assert bench.source.how() == [("t", "intact")]
    assert bench.puller.take() == []


def test_the_backend_gets_a_grant_for_exactly_its_blocks(bench: Bench) -> None:
    hashes = bench.source.offer("a", 6)
    bench.source.grant("t", hashes)
    targets = (50, 51)
    result = bench.pull(bench.job("t", hashes, start=3, target_blocks=targets))
    assert result.ok
    request = bench.backend.requests[0]
    assert (tuple(request.source_blocks), tuple(request.target_blocks)) == ((3, 4), targets)
    packed = pack_blocks(request.source_blocks)
    assert verify_grant(bench.source.keys[0], "t", request.grant, packed)
    assert request.peer == b"rank0"


def test_hashes_may_begin_at_the_first_wanted_block(bench: Bench) -> None:
    hashes = bench.source.offer("a", 6)
    bench.source.grant("t", hashes)
    job = bench.job("t", hashes[3:5], start=3, target_blocks=(50, 51))
    assert bench.pull(job).ok
    assert tuple(bench.backend.requests[0].source_blocks) == (3, 4)


def test_a_partial_grant_leaves_the_rest_to_be_computed(bench: Bench) -> None:
    hashes = bench.source.offer("a", 5)
    bench.source.table.reused(3)
    result = bench.pull(bench.job("t", hashes))
    assert result.ok
    assert (result.count, result.failed_blocks) == (3, (103, 104))
    assert set(bench.backend.pool) == {100, 101, 102}


def test_a_block_reused_during_the_read_makes_it_void(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 3))
    bench.puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.source.table.reused(1)
    bench.backend.gate.set()
    _assert_failed(bench.results(1)[0], job, "settle", "void")
    assert bench.source.how() == [("t", "void")]


def test_without_done_the_same_pull_would_be_taken_for_good(bench: Bench) -> None:
    """The negative control: it is ``done`` that finds out, nothing else."""
    bench.puller.unsafe_skip_done = True
    bench.backend.gate.clear()
    bench.puller.submit(bench.job("t", bench.source.offer("a", 3)))
    assert bench.backend.posted.wait(BOUND_S)
    bench.source.table.reused(1)
    bench.backend.gate.set()
    assert bench.results(1)[0].ok


def test_what_is_not_held_is_refused(bench: Bench) -> None:
    job = bench.job("t", chain("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "pin", "refused")
    assert "not_held" in result.detail
    assert bench.backend.requests == []


def test_another_life_of_the_source_is_refused(bench: Bench) -> None:
    job = bench.job("t", bench.source.offer("a", 2), incarnation="dddddddddddddddd")
    result = bench.pull(job)
    _assert_failed(result, job, "pin", "refused")
    assert "incarnation" in result.detail


def test_nobody_there_is_unreachable(bench: Bench) -> None:
    hashes = bench.source.offer("a", 2)
    job = bench.job("t", hashes)
    bench.server.close()
    _assert_failed(bench.pull(job), job, "pin", "unreachable")


def test_a_source_that_dies_before_done_is_unreachable(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    bench.puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.server.close()
    bench.backend.gate.set()
    _assert_failed(bench.results(1)[0], job, "settle", "unreachable")


@pytest.mark.parametrize("error", ["digest", "unreachable", "refused", "deadline", "error"])
def test_a_failed_read_keeps_its_reason_and_frees_the_source(bench: Bench, error: str) -> None:
    bench.backend.outcome = ReadOutcome(error=error, detail="block 3")
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "read", error)
    assert (result.detail, result.fence, result.backend) == ("block 3", "fake_fence", "fake")
    assert bench.backend.aborts == 1
    assert eventually(lambda: bench.source.how() == [("t", "abort")])
    assert bench.source.ended[0].detail == error


def test_a_backend_that_cannot_post_is_an_error(bench: Bench) -> None:
    bench.backend.refuse_post = "no region"
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "read", "error")
    assert result.detail == "no region"
    assert eventually(lambda: bench.source.how() == [("t", "abort")])


def test_no_common_backend_names_both_sides(bench: Bench) -> None:
    bench.backend.name = "ours"
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "read", "error")
    assert result.detail == "no common backend: unknown-there, ours here, fake there"


def test_other_numbers_of_ranks_do_not_fit(bench: Bench) -> None:
    job = bench.job("t", bench.source.offer("a", 2), ranks=2, rank=1)
    result = bench.pull(job)
    _assert_failed(result, job, "pin", "refused")
    assert "1 ranks" in result.detail


def test_a_deadline_during_the_read_fences_and_fails(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2), deadline_s=1.0)
    result = bench.pull(job)
    _assert_failed(result, job, "read", "deadline")
    assert result.fence == "fake_fence"
    assert bench.backend.aborts == 1


def test_a_defect_of_a_backend_still_yields_the_one_result(bench: Bench) -> None:
    bench.backend.break_wait = True
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "read", "error")
    assert "ZeroDivisionError" in result.detail
    assert bench.backend.aborts == 1


def test_a_backend_that_cannot_end_a_read_is_closed(bench: Bench) -> None:
    bench.backend.break_wait = bench.backend.break_abort = True
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    _assert_failed(result, job, "read", "error")
    assert result.fence == "backend_closed"
    assert bench.backend.closed == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"target_blocks": ()},
        {"target_blocks": (1, 2, 3)},
        {"start": 1},
        {"start": -1, "target_blocks": (1,)},
    ],
)
def test_a_job_that_does_not_fit_itself_fails(bench: Bench, changes: dict[str, Any]) -> None:
    hashes = bench.source.offer("a", 2)
    job = bench.job("t", hashes, **{"target_blocks": (1, 2), **changes})
    if changes == {"start": 1}:
        assert bench.pull(job).ok  # two hashes for two blocks, from block 1 on
        return
    _assert_failed(bench.pull(job), job, "pin", "error")


def test_the_pin_is_renewed_while_the_read_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    bench = Bench(clock=clock)
    renewals: list[Renew] = []
    renew = bench.source.table.renew

    def counted(target: str, frame: Renew) -> Ok | Refused:
        answer = renew(target, frame)
        renewals.append(frame)
        return answer

    monkeypatch.setattr(bench.source.table, "renew", counted)
    puller = Puller(bench.client, [bench.backend], pin_ms=300)
    bench.backend.gate.clear()
    puller.submit(bench.job("t", bench.source.offer("a", 2)))
    assert bench.backend.posted.wait(BOUND_S)
    for _ in range(3):
        seen = len(renewals)
        assert eventually(lambda seen=seen: len(renewals) > seen)
        clock.now_s += 0.25
    bench.backend.gate.set()
    assert eventually(lambda: puller.pending == 0)
    result = puller.take()[0]
    puller.close()
    bench.close()
    assert result.ok, result.detail
    assert bench.source.ended[0].held_ms > 2 * 300


def test_a_pin_that_ended_during_the_read_stops_it(bench: Bench) -> None:
    puller = Puller(bench.client, [bench.backend], pin_ms=300)
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.source.table.abort("p0", Abort(transfer="t"))
    assert eventually(lambda: puller.pending == 0)
    result = puller.take()[0]
    puller.close()
    _assert_failed(result, job, "read", "refused")
    assert bench.backend.aborts == 1


def test_cancelling_a_running_read_fences_it(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    bench.puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.puller.cancel("t")
    bench.puller.cancel("t")
    result = bench.results(1)[0]
    _assert_failed(result, job, "read", "aborted")
    assert (result.fence, bench.backend.aborts) == ("fake_fence", 1)
    bench.puller.cancel("t")
    assert eventually(lambda: bench.source.how() == [("t", "abort")])
    assert bench.puller.take() == []


def test_cancelling_a_queued_job_ends_it_at_once(bench: Bench) -> None:
    bench.backend.gate.clear()
    hashes = bench.source.offer("a", 1)
    for i in range(5):
        bench.puller.submit(bench.job(f"t{i}", hashes))
    assert eventually(lambda: len(bench.backend.requests) == 4)
    bench.puller.cancel("t4")
    results = bench.puller.take()
    assert [(r.transfer, r.reason) for r in results] == [("t4", "aborted")]
    bench.backend.gate.set()
    assert {r.transfer for r in bench.results(4)} == {"t0", "t1", "t2", "t3"}


def test_a_transfer_under_way_cannot_be_submitted_again(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 1))
    bench.puller.submit(job)
    with pytest.raises(ValueError, match="under way"):
        bench.puller.submit(job)
    bench.backend.gate.set()
    assert bench.results(1)[0].ok


def test_every_job_yields_one_result_whatever_happens(bench: Bench) -> None:
    hashes = bench.source.offer("a", 4)
    jobs = [bench.job(f"t{i}", hashes if i % 3 else chain("none", 2)) for i in range(60)]
    for number, job in enumerate(jobs):
        bench.puller.submit(job)
        if number % 4 == 0:
            bench.puller.cancel(job.transfer)
        if number % 10 == 0:
            bench.source.table.reused(2)
            bench.source.table.offer(hashes, range(4))
    results = bench.results(60)
    assert Counter(r.transfer for r in results) == Counter(j.transfer for j in jobs)
    assert any(r.ok for r in results)
    assert {r.reason for r in results} <= {"", "refused", "aborted", "void"}
    assert bench.puller.pending == 0


def test_closing_ends_every_job_with_a_result_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    bench = Bench()
    bench.backend.gate.clear()
    hashes = bench.source.offer("a", 1)
    for i in range(9):
        bench.puller.submit(bench.job(f"t{i}", hashes))
    assert eventually(lambda: len(bench.backend.requests) == 4)
    began_s = time.monotonic()
    bench.puller.close()
    assert time.monotonic() - began_s < BOUND_S / 2
    results = bench.puller.take()
    assert Counter(r.transfer for r in results) == Counter(f"t{i}" for i in range(9))
    assert {r.reason for r in results} == {"aborted"}
    assert bench.backend.aborts == 4
    bench.puller.submit(bench.job("late", hashes))
    assert [r.reason for r in bench.puller.take()] == ["aborted"]
    bench.close()
    assert set(threading.enumerate()) == before


def test_two_ranks_settle_one_pin() -> None:
    bench = Bench(ranks=2)
    other = Puller(bench.client, [bench.backend])
    hashes = bench.source.offer("a", 2)
    bench.puller.submit(bench.job("t", hashes, rank=0, ranks=2))
    other.submit(bench.job("t", hashes, rank=1, ranks=2))
    assert bench.results(1)[0].ok
    assert eventually(lambda: other.pending == 0)
    assert other.take()[0].ok
    assert {request.peer for request in bench.backend.requests} == {b"rank0", b"rank1"}
    assert bench.source.how() == [("t", "intact")]
    other.close()
    bench.close()
