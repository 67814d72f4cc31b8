"""The puller against a real peer server over real sockets, with a fake data plane."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.peers.puller_bench import Bench, assert_failed
from tests.unit.peers.support import (
    BOUND_S,
    chain,
    eventually,
)

from kvferry.node.export.grants import pack_blocks, verify_grant
from kvferry.node.pull.attempt import NOBODY_LISTENS
from kvferry.ports.backend import ReadOutcome


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
    assert_failed(bench.results(1)[0], job, "settle", "void")
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
    assert_failed(result, job, "pin", "refused")
    assert "not_held" in result.detail
    assert bench.backend.requests == []


def test_another_life_of_the_source_is_refused(bench: Bench) -> None:
    job = bench.job("t", bench.source.offer("a", 2), incarnation="dddddddddddddddd")
    result = bench.pull(job)
    assert_failed(result, job, "pin", "refused")
    assert "incarnation" in result.detail


def test_nobody_there_is_unreachable(bench: Bench) -> None:
    hashes = bench.source.offer("a", 2)
    job = bench.job("t", hashes)
    bench.server.close()
    result = bench.pull(job)
    assert_failed(result, job, "pin", "unreachable")
    assert result.detail.startswith(NOBODY_LISTENS)


def test_a_source_that_dies_before_done_is_unreachable(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2))
    bench.puller.submit(job)
    assert bench.backend.posted.wait(BOUND_S)
    bench.server.close()
    bench.backend.gate.set()
    assert_failed(bench.results(1)[0], job, "settle", "unreachable")


@pytest.mark.parametrize("error", ["digest", "unreachable", "refused", "deadline", "error"])
def test_a_failed_read_keeps_its_reason_and_frees_the_source(bench: Bench, error: str) -> None:
    bench.backend.outcome = ReadOutcome(error=error, detail="block 3")
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    assert_failed(result, job, "read", error)
    assert (result.detail, result.fence, result.backend) == ("block 3", "fake_fence", "fake")
    assert bench.backend.aborts == 1
    assert eventually(lambda: bench.source.how() == [("t", "abort")])
    assert bench.source.ended[0].detail == error


def test_a_backend_that_cannot_post_is_an_error(bench: Bench) -> None:
    bench.backend.refuse_post = "no region"
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    assert_failed(result, job, "read", "error")
    assert result.detail == "no region"
    assert eventually(lambda: bench.source.how() == [("t", "abort")])


def test_no_common_backend_names_both_sides(bench: Bench) -> None:
    bench.backend.name = "ours"
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    assert_failed(result, job, "read", "error")
    assert result.detail == "no common backend: unknown-there, ours here, fake there"


def test_other_numbers_of_ranks_do_not_fit(bench: Bench) -> None:
    job = bench.job("t", bench.source.offer("a", 2), ranks=2, rank=1)
    result = bench.pull(job)
    assert_failed(result, job, "pin", "refused")
    assert "1 ranks" in result.detail


def test_a_deadline_during_the_read_fences_and_fails(bench: Bench) -> None:
    bench.backend.gate.clear()
    job = bench.job("t", bench.source.offer("a", 2), deadline_s=3.0)
    result = bench.pull(job)
    assert_failed(result, job, "read", "deadline")
    assert result.fence == "fake_fence"
    assert bench.backend.aborts == 1


def test_a_defect_of_a_backend_still_yields_the_one_result(bench: Bench) -> None:
    bench.backend.break_wait = True
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    assert_failed(result, job, "read", "error")
    assert "ZeroDivisionError" in result.detail
    assert bench.backend.aborts == 1


def test_a_backend_that_cannot_end_a_read_is_closed(bench: Bench) -> None:
    bench.backend.break_wait = bench.backend.break_abort = True
    job = bench.job("t", bench.source.offer("a", 2))
    result = bench.pull(job)
    assert_failed(result, job, "read", "error")
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
    assert_failed(bench.pull(job), job, "pin", "error")
