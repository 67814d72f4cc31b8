"""After an outcome, an abort or a close, not one byte of a block changes that was given away.

A peer is frozen, the read is ended, the engine gives the target blocks to another request, and
the peer goes on with what it had begun. One-sided reads may end well while the peer is frozen.
"""

from __future__ import annotations

import time

import pytest
from tests.contract.conftest import Serve, Start
from tests.contract.kinds import Kind
from tests.contract.pools import CANARY, Pool, pattern
from tests.contract.reading import WAIT_S, caught, finished, post
from tests.contract.sources import Source

from kvferry.ports.backend import Backend, Posted, Verify

BLOCK_BYTES = 65536
ATTEMPTS_MAX = 10
PATIENCE_S = 1.5
SLACK_S = 0.1
"""Deadlines of parts are told to the other side in whole milliseconds."""


def whole(kind: Kind, target: Backend, source: Source, deadline_s: float = WAIT_S) -> Posted:
    """Read all blocks but the last into the same places."""
    listed = range(kind.long_blocks - 1)
    return post(target, source, listed, listed, verify=Verify.OFF, deadline_s=deadline_s)


def last(kind: Kind, target: Backend, source: Source) -> None:
    """Read the last block: shows that the peer lives and has gone on with its work."""
    nth = kind.long_blocks - 1
    assert finished(post(target, source, [nth], [nth])).error == ""


def reuse(pool: Pool, count: int | None = None) -> int:
    """The engine gives the first blocks, by default all but the last, to another request.

    Returns:
        How many blocks that are.
    """
    count = pool.blocks - 1 if count is None else count
    pool.fill("reused", count)
    return count


def test_freezing_in_mid_read_ends_by_the_deadline_and_is_fenced(
    kind: Kind, serve: Serve, start: Start
) -> None:
    process = start()
    source = process.serve(kind.long_blocks, [BLOCK_BYTES])
    for _ in range(ATTEMPTS_MAX):
        pool = kind.pool(kind.long_blocks, [BLOCK_BYTES])
        target = serve(pool)
        began = time.monotonic()
        posted = whole(kind, target, source, deadline_s=PATIENCE_S)
        in_time = caught(pool, posted)
        process.freeze()
        outcome = finished(posted)
        if (in_time and outcome.error) or kind.capabilities.one_sided:
            break
        process.resume()
    assert outcome.error == "deadline" or (kind.capabilities.one_sided and not outcome.error)
    assert not outcome.error or time.monotonic() - began >= PATIENCE_S - SLACK_S
    reused = reuse(pool)
    process.resume()
    last(kind, target, source)
    assert pool.holds("reused", reused)


@pytest.mark.parametrize("when", ["before the first byte", "in mid-read"])
def test_after_an_abort_a_resumed_peer_changes_nothing(
    kind: Kind, serve: Serve, start: Start, when: str
) -> None:
    assert pattern("source", 0, 1)[0] != CANARY
    process = start()
    source = process.serve(kind.long_blocks, [BLOCK_BYTES])
    for _ in range(ATTEMPTS_MAX):
        pool = kind.pool(kind.long_blocks, [BLOCK_BYTES])
        target = serve(pool)
        if when == "in mid-read":
            posted = whole(kind, target, source)
            caught(pool, posted)
            process.freeze()
        else:
            process.freeze()
            posted = whole(kind, target, source)
        outcome = posted.abort()
        if outcome.error:
            break
        process.resume()
    assert outcome.error == "aborted"
    assert posted.poll() == outcome
    reused = reuse(pool)
    process.resume()
    # The peer wakes, finds the old request and would send; the new reads come after it.
    last(kind, target, source)
    last(kind, target, source)
    assert pool.holds("reused", reused)
    assert pool.get(kind.long_blocks - 1) == pattern("source", kind.long_blocks - 1, BLOCK_BYTES)


def test_without_an_abort_late_bytes_do_come(kind: Kind, serve: Serve, start: Start) -> None:
    """Negative control: it is the abort that keeps them away."""
    if kind.capabilities.one_sided:
        pytest.skip("one-sided: nothing is late, a frozen peer's memory is read all the same")
    process = start()
    source = process.serve(kind.long_blocks, [BLOCK_BYTES])
    pool = kind.pool(kind.long_blocks, [BLOCK_BYTES])
    target = serve(pool)
    process.freeze()
    posted = whole(kind, target, source)
    reused = reuse(pool)
    process.resume()
    assert finished(posted).error == ""
    assert not pool.holds("reused", reused)


def test_close_aborts_what_is_under_way(kind: Kind, serve: Serve, start: Start) -> None:
    process = start()
    source = process.serve(kind.long_blocks, [BLOCK_BYTES])
    pools = [kind.pool(kind.long_blocks, [BLOCK_BYTES]) for _ in range(2)]
    target = serve(pools[0])
    process.freeze()
    posted = [whole(kind, target, source) for _ in range(3)]
    began = time.monotonic()
    target.close()
    assert time.monotonic() - began < WAIT_S / 2
    outcomes = [one.poll() for one in posted]
    allowed = ("aborted", "") if kind.capabilities.one_sided else ("aborted",)
    assert all(outcome is not None and outcome.error in allowed for outcome in outcomes)
    reused = reuse(pools[0])
    process.resume()
    last(kind, serve(pools[1]), source)
    assert pools[0].holds("reused", reused)


def test_an_abort_leaves_other_reads_alone(kind: Kind, serve: Serve, start: Start) -> None:
    """Blocks of the aborted read are given away while the other read goes on."""
    process = start()
    source = process.serve(kind.long_blocks, [BLOCK_BYTES])
    pool = kind.pool(kind.long_blocks, [BLOCK_BYTES])
    target = serve(pool)
    half = kind.long_blocks // 2
    process.freeze()
    doomed = post(target, source, range(half), range(half), verify=Verify.OFF)
    kept = post(target, source, range(half, half + 64), range(half, half + 64))
    assert doomed.abort().error in (("aborted", "") if kind.capabilities.one_sided else "aborted")
    reused = reuse(pool, half)
    process.resume()
    if kind.aborts_alone:
        assert finished(kept).error == ""
        assert pool.get(half + 5) == pattern("source", half + 5, BLOCK_BYTES)
    else:
        assert finished(kept).error in ("", "error", "aborted")
    assert pool.holds("reused", reused)
