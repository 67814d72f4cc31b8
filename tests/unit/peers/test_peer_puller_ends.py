"""How pulls end: renewal, cancelling, closing, several ranks; one result for each job."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from tests.unit.peers.puller_bench import PATIENT, Bench, assert_failed
from tests.unit.peers.support import (
    BOUND_S,
    SOURCE_LIFE,
    ManualClock,
    chain,
    eventually,
)

from kvferry.node.peers.wire import Abort, Ok, Pin, Refused, Renew
from kvferry.node.pull.puller import Puller


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
    puller = Puller(bench.client, [bench.backend], pin_ms=300, call_timeout_s=BOUND_S)
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
    puller = Puller(bench.client, [bench.backend], pin_ms=300, call_timeout_s=BOUND_S)
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.source.table.abort("p0", Abort(transfer="t"))
    assert eventually(lambda: puller.pending == 0)
    result = puller.take()[0]
    puller.close()
    assert_failed(result, job, "read", "refused")
    assert bench.backend.aborts == 1


def test_cancelling_a_running_read_fences_it(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    bench.puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.puller.cancel("t")
    bench.puller.cancel("t")
    result = bench.results(1)[0]
    assert_failed(result, job, "read", "aborted")
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


def test_a_job_cancelled_in_the_queue_frees_the_pin_made_for_it_elsewhere(bench: Bench) -> None:
    """The engine's scheduler side pins under the same transfer before a worker gets the job."""
    bench.backend.gate.clear()
    hashes = bench.source.offer("a", 1)
    for i in range(5):
        bench.puller.submit(bench.job(f"t{i}", hashes))
    pin = Pin(transfer="t4", incarnation=SOURCE_LIFE, hashes=hashes)
    bench.client.call(bench.server.address, pin, timeout_s=BOUND_S)
    assert eventually(lambda: len(bench.backend.requests) == 4)
    bench.puller.cancel("t4")
    bench.backend.gate.set()
    assert eventually(lambda: ("t4", "abort") in bench.source.how())
    assert {r.transfer for r in bench.results(5)} == {"t0", "t1", "t2", "t3", "t4"}


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
    other = Puller(bench.client, [bench.backend], **PATIENT)
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
