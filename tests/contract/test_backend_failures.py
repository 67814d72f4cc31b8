"""A peer that dies or freezes costs at most the deadline, and never a byte of a reused block."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.contract.peers import PeerProcess
from tests.contract.pools import CANARY, Pool, pattern, snapshot

from kvferry.ports.backend import Backend, Posted, ReadOutcome, ReadRequest, Verify

Serve = Callable[..., Backend]
Start = Callable[..., PeerProcess]

BLOCKS = 1024
BLOCK_BYTES = 65536
WAIT_S = 30.0
ATTEMPTS_MAX = 10


def whole(peer: PeerProcess, target: Backend, deadline_s: float = WAIT_S) -> Posted:
    """Read all blocks but the last into the same places."""
    return target.post(
        ReadRequest(
            transfer=f"whole.{time.monotonic_ns()}",
            peer=peer.description,
            grant=b"",
            source_blocks=range(BLOCKS - 1),
            target_blocks=range(BLOCKS - 1),
            verify=Verify.OFF,
            deadline_s=deadline_s,
        )
    )


def last(peer: PeerProcess, target: Backend) -> ReadOutcome:
    """Read the last block: shows that the peer lives and has gone on with its work."""
    posted = target.post(
        ReadRequest(
            transfer=f"last.{time.monotonic_ns()}",
            peer=peer.description,
            grant=b"",
            source_blocks=[BLOCKS - 1],
            target_blocks=[BLOCKS - 1],
            deadline_s=WAIT_S,
        )
    )
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    return outcome


def caught(target_pool: Pool, posted: Posted) -> bool:
    """Wait until the first bytes have come; False if the read is over already."""
    until = time.monotonic() + WAIT_S
    while target_pool.first_byte_of(0) == CANARY:
        if posted.poll() is not None:
            return False
        assert time.monotonic() < until
        time.sleep(0.0002)
    return posted.poll() is None


def wiped() -> Pool:
    return Pool(BLOCKS, [BLOCK_BYTES])


def assert_never_canary() -> None:
    assert pattern("peer", 0, 1)[0] != CANARY


def test_death_in_mid_read_is_unreachable(serve: Serve, start_peer: Start) -> None:
    assert_never_canary()
    for _ in range(ATTEMPTS_MAX):
        peer = start_peer(BLOCKS, [BLOCK_BYTES], "peer")
        pool = wiped()
        target = serve(pool)
        posted = whole(peer, target)
        in_time = caught(pool, posted)
        peer.kill()
        began = time.monotonic()
        outcome = posted.wait(WAIT_S)
        assert outcome is not None
        if in_time and outcome.error:
            break
    assert outcome is not None
    assert outcome.error == "unreachable"
    assert time.monotonic() - began < WAIT_S / 2
    # A dead peer stays unreachable, and another one is reached without registering again.
    assert last(peer, target).error == "unreachable"
    other = start_peer(BLOCKS, [BLOCK_BYTES], "other")
    assert last(other, target).error == ""
    assert pool.get(BLOCKS - 1) == pattern("other", BLOCKS - 1, BLOCK_BYTES)


def test_freezing_in_mid_read_ends_by_the_deadline_and_is_fenced(
    serve: Serve, start_peer: Start
) -> None:
    peer = start_peer(BLOCKS, [BLOCK_BYTES], "peer")
    for _ in range(ATTEMPTS_MAX):
        pool = wiped()
        target = serve(pool)
        posted = whole(peer, target, deadline_s=1.5)
        in_time = caught(pool, posted)
        peer.freeze()
        outcome = posted.wait(WAIT_S)
        assert outcome is not None
        if in_time and outcome.error:
            break
        peer.resume()
    assert outcome is not None
    assert outcome.error == "deadline"
    assert outcome.read_ms >= 1400
    reused = reuse(pool)
    peer.resume()
    assert last(peer, target).error == ""
    assert pool.memory[: len(reused)] == reused


def reuse(pool: Pool) -> bytes:
    """The engine gives all blocks but the last to another request."""
    for block in range(BLOCKS - 1):
        pool.put(block, pattern("reused", block, BLOCK_BYTES))
    return snapshot(pool)[: (BLOCKS - 1) * BLOCK_BYTES]


@pytest.mark.parametrize("when", ["before the first byte", "in mid-read"])
def test_after_an_abort_a_resumed_peer_changes_nothing(
    serve: Serve, start_peer: Start, when: str
) -> None:
    peer = start_peer(BLOCKS, [BLOCK_BYTES], "peer")
    for _ in range(ATTEMPTS_MAX):
        pool = wiped()
        target = serve(pool)
        if when == "in mid-read":
            posted = whole(peer, target)
            caught(pool, posted)
            peer.freeze()
        else:
            peer.freeze()
            posted = whole(peer, target)
        outcome = posted.abort()
        if outcome.error:
            break
        peer.resume()
    assert outcome.error == "aborted"
    reused = reuse(pool)
    peer.resume()
    # The peer wakes, finds the old request and would send; the new read comes after it.
    assert last(peer, target).error == ""
    assert last(peer, target).error == ""
    assert pool.memory[: len(reused)] == reused
    assert pool.get(BLOCKS - 1) == pattern("peer", BLOCKS - 1, BLOCK_BYTES)


def test_close_aborts_what_is_under_way(serve: Serve, start_peer: Start) -> None:
    peer = start_peer(BLOCKS, [BLOCK_BYTES], "peer")
    peer.freeze()
    pool = wiped()
    target = serve(pool)
    posted = [whole(peer, target) for _ in range(3)]
    began = time.monotonic()
    target.close()
    assert time.monotonic() - began < WAIT_S / 2
    for one in posted:
        outcome = one.poll()
        assert outcome is not None
        assert outcome.error == "aborted"
    reused = reuse(pool)
    peer.resume()
    assert last(peer, serve(Pool(BLOCKS, [BLOCK_BYTES]))).error == ""
    assert pool.memory[: len(reused)] == reused


def test_a_forgotten_peer_ends_its_reads_and_no_others(serve: Serve, start_peer: Start) -> None:
    gone, other = start_peer(BLOCKS, [BLOCK_BYTES], "peer"), start_peer(2, [BLOCK_BYTES], "other")
    pool = wiped()
    target = serve(pool)
    target.forget(b"nonsense")
    target.forget(gone.description)  # never met
    gone.freeze()
    posted = whole(gone, target)
    target.forget(other.description)
    target.forget(gone.description)
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "unreachable"
    reused = reuse(pool)
    gone.resume()
    read = target.post(
        ReadRequest(
            transfer="t",
            peer=other.description,
            grant=b"",
            source_blocks=[1],
            target_blocks=[BLOCKS - 1],
            deadline_s=WAIT_S,
        )
    )
    ended = read.wait(WAIT_S)
    assert ended is not None
    assert ended.error == ""
    assert pool.get(BLOCKS - 1) == pattern("other", 1, BLOCK_BYTES)
    assert pool.memory[: len(reused)] == reused


def test_nobody_there_is_unreachable(serve: Serve, start_peer: Start) -> None:
    peer = start_peer(2, [BLOCK_BYTES], "peer")
    peer.kill()
    pool = Pool(2, [BLOCK_BYTES])
    posted = serve(pool).post(
        ReadRequest(
            transfer="t", peer=peer.description, grant=b"", source_blocks=[0], target_blocks=[0]
        )
    )
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "unreachable"
