"""A peer that dies, restarts or was never there costs a failed read, and no wrong byte."""

from __future__ import annotations

import time

import pytest
from tests.contract.conftest import Serve, Start
from tests.contract.kinds import Kind
from tests.contract.pools import pattern, snapshot
from tests.contract.reading import WAIT_S, caught, finished, post

from kvferry.errors import BackendError
from kvferry.ports.backend import Backend, Verify

BLOCK_BYTES = 65536
ATTEMPTS_MAX = 10
GONE = ("unreachable", "refused")


def test_death_in_mid_read_is_unreachable(kind: Kind, serve: Serve, start: Start) -> None:
    blocks = kind.long_blocks
    for _ in range(ATTEMPTS_MAX):
        process = start()
        source = process.serve(blocks, [BLOCK_BYTES])
        pool = kind.pool(blocks, [BLOCK_BYTES])
        target = serve(pool)
        posted = post(target, source, range(blocks), range(blocks), verify=Verify.OFF)
        in_time = caught(pool, posted)
        process.kill()
        began = time.monotonic()
        outcome = finished(posted)
        if in_time and outcome.error:
            break
    assert outcome.error == "unreachable", outcome
    assert time.monotonic() - began < WAIT_S / 2
    # A dead peer stays unreachable, and another one is reached without registering again.
    assert unread(target, source.description) in GONE
    other = start().serve(4, [BLOCK_BYTES], "other")
    assert finished(post(target, other, [3], [0])).error == ""
    assert pool.get(0) == pattern("other", 3, BLOCK_BYTES)


def unread(target: Backend, description: bytes) -> str:
    """The error of a read that has to fail, be it at once or later."""
    try:
        return finished(post(target, description, [0], [0])).error
    except BackendError:
        return "refused"


def test_nobody_there_is_unreachable(kind: Kind, serve: Serve, start: Start) -> None:
    process = start()
    source = process.serve(2, [BLOCK_BYTES])
    process.kill()
    pool = kind.pool(2, [BLOCK_BYTES])
    before = snapshot(pool)
    assert unread(serve(pool), source.description) in GONE
    assert snapshot(pool) == before


def test_a_restarted_peer_is_another_one(kind: Kind, serve: Serve, start: Start) -> None:
    """In the very place of its predecessor it must not be read by who means that one."""
    process = start()
    first = process.serve(8, [BLOCK_BYTES], "first")
    pool = kind.pool(8, [BLOCK_BYTES])
    target = serve(pool)
    assert finished(post(target, first, [0], [0])).error == ""
    process.kill()
    second = start().serve(
        8, [BLOCK_BYTES], "second", permit="allow", **kind.place_of(first.description)
    )
    before = snapshot(pool)
    assert unread(target, first.description) in GONE
    assert snapshot(pool) == before
    assert finished(post(target, second, [0], [1])).error == ""
    assert pool.get(0) == pattern("first", 0, BLOCK_BYTES)
    assert pool.get(1) == pattern("second", 0, BLOCK_BYTES)


def test_a_forgotten_peer_ends_its_reads_and_no_others(
    kind: Kind, serve: Serve, start: Start
) -> None:
    blocks = kind.long_blocks
    gone, other = start(), start()
    source, second = gone.serve(blocks, [BLOCK_BYTES]), other.serve(2, [BLOCK_BYTES], "other")
    pool = kind.pool(blocks, [BLOCK_BYTES])
    target = serve(pool)
    target.forget(b"nonsense")
    target.forget(source.description)  # never met
    gone.freeze()
    posted = post(target, source, range(blocks - 1), range(blocks - 1), verify=Verify.OFF)
    target.forget(second.description)
    target.forget(source.description)
    outcome = finished(posted)
    if kind.capabilities.one_sided:
        assert outcome.error in ("", "unreachable")  # It may have ended before.
    else:
        assert outcome.error == "unreachable"
    reused = b"reused" * 1000
    pool.write(0, reused)
    gone.resume()
    assert finished(post(target, second, [1], [blocks - 1])).error == ""
    assert pool.get(blocks - 1) == pattern("other", 1, BLOCK_BYTES)
    assert pool.read(0, len(reused)) == reused


def test_after_close_nothing_is_served_or_posted(kind: Kind, serve: Serve, start: Start) -> None:
    source = start().serve(4, [BLOCK_BYTES])
    pool = kind.pool(4, [BLOCK_BYTES])
    target = serve(pool)
    assert finished(post(target, source, [3], [3])).error == ""
    before = snapshot(pool)
    source.close()
    if kind.revokes:
        assert unread(target, source.description) in GONE
        assert snapshot(pool) == before
    target.close()
    target.close()
    with pytest.raises(BackendError):
        post(target, source, [1], [1])
