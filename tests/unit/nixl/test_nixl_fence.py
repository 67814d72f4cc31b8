"""Reads that NIXL cannot cancel: over UCX's TCP, where the frozen source has to send the bytes.

On this road UCX itself ends a source that wakes after its reader has gone, now and then, which is
why ``allow_tcp`` is off between hosts; these tests do not depend on the source's survival.
"""

from __future__ import annotations

import ctypes
import time

import pytest
from tests.contract.kinds import Kind
from tests.contract.pools import CANARY, Pool, pattern
from tests.contract.reading import WAIT_S, caught, finished, post
from tests.contract.sources import SourceProcess
from tests.unit.nixl.conftest import Make

from kvferry_backends.nixl import library
from kvferry_backends.nixl.agent import Agent, AgentError
from kvferry_backends.nixl.backend import NixlBackend
from kvferry_backends.nixl.options import parse_options

BLOCKS = 1024
BLOCK_BYTES = 65536
ATTEMPTS_MAX = 20
LATE_S = 1.0
"""For what a woken source still sends. Its kernel buffers alone arrive in milliseconds."""
OPTIONS: dict[str, object] = {
    "environment": {"UCX_TLS": "tcp"},
    "slots": 2,
    "slot_bytes": 2 * 1024 * 1024,
    "rings": 1,
}


def reuse(pool: Pool) -> bytes:
    data = b"".join(pattern("reused", block, BLOCK_BYTES) for block in range(BLOCKS))
    pool.write(0, data)
    return data


@pytest.mark.parametrize("mode", ["direct", "packed"])
def test_after_an_abort_a_resumed_source_changes_nothing(
    kind: Kind, make: Make, process: SourceProcess, mode: str
) -> None:
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode=mode, **OPTIONS)
    for _ in range(ATTEMPTS_MAX):
        pool = kind.pool(BLOCKS, [BLOCK_BYTES])
        target = make(pool, mode=mode, **OPTIONS)
        posted = post(target, source, range(BLOCKS), range(BLOCKS))
        caught(pool, posted)
        process.freeze()
        outcome = posted.abort()
        if outcome.error:
            break
        process.resume()
    assert outcome.error == "aborted"
    reused = reuse(pool)
    process.resume()
    time.sleep(LATE_S)
    assert pool.read(0, len(reused)) == reused


def test_without_the_fence_the_bytes_do_come(
    kind: Kind, make: Make, process: SourceProcess
) -> None:
    """Negative control: the very same read, not aborted, writes over the reused blocks."""
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode="direct", **OPTIONS)
    for _ in range(ATTEMPTS_MAX):
        pool = kind.pool(BLOCKS, [BLOCK_BYTES])
        target = make(pool, mode="direct", **OPTIONS)
        posted = post(target, source, range(BLOCKS), range(BLOCKS))
        caught(pool, posted)
        process.freeze()
        reused = reuse(pool)
        process.resume()
        assert finished(posted).error == ""
        if pool.read(0, len(reused)) != reused:
            return
    pytest.fail("every read was over before its source was frozen")


def test_the_peer_is_read_again_after_its_agent_was_ended(
    kind: Kind, make: Make, process: SourceProcess
) -> None:
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode="direct", **OPTIONS)
    pool = kind.pool(BLOCKS, [BLOCK_BYTES])
    target = make(pool, mode="direct", **OPTIONS)
    assert finished(post(target, source, [1], [2])).error == ""
    assert target._links is not None
    known = next(iter(target._links._known.values()))
    first = known.link
    assert first is not None
    target._links.retire(known, first)
    target._links.retire(known, first)
    assert finished(post(target, source, [3], [4])).error == ""
    assert known.link is not first
    assert pool.get(4) == pattern("source", 3, BLOCK_BYTES)


def test_a_ring_waits_for_what_is_late_and_comes_back(
    kind: Kind, make: Make, process: SourceProcess
) -> None:
    # Chunks larger than what the kernel holds for a frozen process.
    options = {**OPTIONS, "slot_bytes": 32 * 1024 * 1024, "rings": 1}
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode="packed", **{**options, "rings": 4})
    pool = kind.pool(BLOCKS, [BLOCK_BYTES])
    target = make(pool, mode="packed", **options)
    assert target._pool is not None
    assert target._pool.rings is not None
    slot = target._pool.rings.area[0]
    for _ in range(ATTEMPTS_MAX):
        ctypes.memset(slot, CANARY, 1)
        posted = post(target, source, range(BLOCKS), range(BLOCKS))
        while ctypes.string_at(slot, 1)[0] == CANARY and posted.poll() is None:
            pass
        process.freeze()
        posted.abort()
        if stuck(target):
            break
        process.resume()
    else:
        pytest.fail("the source was never frozen with part of a chunk still to send")
    # The wait has a bound, after which the agent goes and the ring is free.
    assert target._links is not None
    parked = target._links._parking._parked[0]
    object.__setattr__(parked, "until_s", time.monotonic())
    assert free(target)


def stuck(target: NixlBackend) -> bool:
    """Whether its only ring waits for a source that is frozen, not just for the wire."""
    until = time.monotonic() + LATE_S / 2
    while time.monotonic() < until:
        if free(target):
            return False
        time.sleep(0.001)
    return not free(target)


def free(target: NixlBackend) -> bool:
    """Whether its only ring could be had now."""
    assert target._pool is not None
    assert target._pool.rings is not None
    assert target._links is not None
    target._links.sweep()
    loan = target._pool.rings.take()
    if loan is not None:
        loan.give_back()
    return loan is not None


def test_close_does_not_wait_for_a_frozen_source(
    kind: Kind, make: Make, process: SourceProcess
) -> None:
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode="direct", **OPTIONS)
    pool = kind.pool(BLOCKS, [BLOCK_BYTES])
    target = make(pool, mode="direct", **OPTIONS)
    posted = post(target, source, range(BLOCKS), range(BLOCKS))
    caught(pool, posted)
    process.freeze()
    began = time.monotonic()
    target.close()
    assert time.monotonic() - began < WAIT_S / 4
    assert posted.poll() is not None


def test_an_agent_that_somebody_holds_is_not_reported_as_gone(kind: Kind, make: Make) -> None:
    """Negative control of the fence: a reference to NIXL's own object keeps it from ending."""
    agent = Agent(library.find(), "held", parse_options({"devices": ["lo"]}))
    held = agent._agent.agent
    for _ in range(2):
        with pytest.raises(AgentError, match="could not be destroyed"):
            agent.end()
    del held
    agent.end()
    agent.end()


def test_finished_reads_leave_nothing_in_the_agent(
    kind: Kind, make: Make, process: SourceProcess
) -> None:
    source = process.serve(BLOCKS, [BLOCK_BYTES], mode="direct")
    target = make(kind.pool(BLOCKS, [BLOCK_BYTES]), mode="direct")
    for nth in range(20):
        assert finished(post(target, source, [nth, 100, 300], [5, 6, 9])).error == ""
    assert target._links is not None
    link = next(iter(target._links._known.values())).link
    assert link is not None
    assert not link.agent._under_way
