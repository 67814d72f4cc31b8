"""Whatever ends a transfer ends it soon, behind a fence, and the next one makes a new start."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.pools import CANARY, Pool, pattern, snapshot
from tests.unit.nccl.conftest import WAIT_S, End, Make
from tests.unit.nccl.host_device import until

from kvferry_backends import posted
from kvferry_backends.nccl import pair as pair_module

BLOCKS = 64
BLOCK_BYTES = 65536
SLOW_S = 0.2
"""What a chunk takes where a read is to be caught in its midst: all of it would take 12 s."""
_ROOT = Path(__file__).resolve().parents[3]


class Remote:
    """A source in another process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.unit.nccl.source_process",
                str(BLOCKS),
                str(BLOCK_BYTES),
                "remote",
            ],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        assert ready
        self.description = bytes.fromhex(self.process.stdout.readline().decode())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[[], Remote]]:
    made: list[Remote] = []

    def one() -> Remote:
        made.append(Remote())
        return made[-1]

    yield one
    for remote in made:
        remote.close()


def reuse(pool: Pool) -> bytes:
    """The engine gives all blocks but the last to another request."""
    for block in range(BLOCKS - 1):
        pool.put(block, pattern("reused", block, BLOCK_BYTES))
    return snapshot(pool)[: (BLOCKS - 1) * BLOCK_BYTES]


def under_way(target: End) -> None:
    """The first bytes have come."""
    assert pattern("remote", 0, 1)[0] != CANARY
    until(lambda: target.pool.first_byte_of(0) != CANARY)


def last(target: End, description: bytes) -> str:
    """How a read of the last block ends."""
    outcome = target.post(description, [BLOCKS - 1], [BLOCKS - 1], transfer="last").wait(WAIT_S)
    assert outcome is not None
    if not outcome.error:
        assert target.pool.get(BLOCKS - 1) == pattern("remote", BLOCKS - 1, BLOCK_BYTES)
    return outcome.error


def test_a_source_killed_in_mid_send_ends_the_read_and_hangs_nobody(
    make: Make, start: Callable[[], Remote]
) -> None:
    remote, target = start(), make(Pool(BLOCKS, [BLOCK_BYTES]))
    read = target.post(remote.description, range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    remote.process.kill()
    outcome = read.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "unreachable"
    assert outcome.read_ms < WAIT_S / 2 * 1000
    assert target.device.live == 0
    assert last(target, remote.description) == "unreachable"
    assert last(target, start().description) == ""


def test_a_source_frozen_in_mid_send_costs_the_deadline_and_never_writes_later(
    make: Make, start: Callable[[], Remote]
) -> None:
    remote, target = start(), make(Pool(BLOCKS, [BLOCK_BYTES]))
    read = target.post(remote.description, range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    remote.signal(signal.SIGSTOP)
    read.deadline = time.monotonic() + 0.4
    outcome = read.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "deadline"
    reused = reuse(target.pool)
    remote.signal(signal.SIGCONT)
    # It wakes in the midst of the old transfer; the new one is over a new communicator.
    assert last(target, remote.description) == ""
    assert snapshot(target.pool)[: len(reused)] == reused
    assert len(target.device.opened) == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_an_abort_in_mid_read_is_fenced(
    make: Make, start: Callable[[], Remote], frozen: bool
) -> None:
    remote, target = start(), make(Pool(BLOCKS, [BLOCK_BYTES]), scatter_s=0.01)
    read = target.post(remote.description, range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    if frozen:
        remote.signal(signal.SIGSTOP)
    assert read.abort().error == "aborted"
    reused = reuse(target.pool)
    remote.signal(signal.SIGCONT)
    assert last(target, remote.description) == ""
    assert snapshot(target.pool)[: len(reused)] == reused


def test_without_the_fence_the_stand_in_does_write_into_reused_blocks(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: an abort alone leaves scatters in the stream, as on a GPU."""
    source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=0.01)
    target = make(Pool(BLOCKS, [BLOCK_BYTES]), scatter_s=0.1)
    source.pool.fill("remote")
    fence = pair_module.fence
    monkeypatch.setattr(pair_module, "fence", lambda pipe: pipe.abort() is None)
    read = target.post(source.backend.describe(), range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    assert read.abort().error == "aborted"
    reused = reuse(target.pool)
    until(lambda: snapshot(target.pool)[: len(reused)] != reused)
    for pipe in target.device.opened:
        fence(pipe)


def test_reads_in_the_queue_end_at_once_by_abort_and_by_their_own_deadline(make: Make) -> None:
    source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=SLOW_S)
    target = make(Pool(BLOCKS, [BLOCK_BYTES]))
    source.pool.fill("remote")
    peer = source.backend.describe()
    long = target.post(peer, range(40), range(40))
    aborted = target.post(peer, [41], [41])
    overdue = target.post(peer, [42], [42], deadline_s=0.05)
    assert aborted.abort().error == "aborted"
    outcome = overdue.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "deadline"
    assert long.poll() is None
    source.device.pace_s = 0.0
    outcome = long.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.get(41) == target.pool.get(42) == bytes([CANARY]) * BLOCK_BYTES


def test_close_of_either_end_in_mid_read(make: Make) -> None:
    for closing in ("source", "target"):
        source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=SLOW_S)
        target = make(Pool(BLOCKS, [BLOCK_BYTES]))
        source.pool.fill("remote")
        reads = [
            target.post(source.backend.describe(), range(BLOCKS), range(BLOCKS)) for _ in range(3)
        ]
        under_way(target)
        began = time.monotonic()
        (source if closing == "source" else target).backend.close()
        for read in reads:
            outcome = read.wait(WAIT_S)
            assert outcome is not None
            assert outcome.error == ("unreachable" if closing == "source" else "aborted")
        assert time.monotonic() - began < WAIT_S / 2


def test_forgetting_a_source_ends_its_reads_and_communicators(make: Make) -> None:
    source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=SLOW_S)
    target, other = make(Pool(BLOCKS, [BLOCK_BYTES])), make(Pool(BLOCKS, [BLOCK_BYTES]))
    source.pool.fill("remote")
    peer = source.backend.describe()
    assert last(other, peer) == ""
    reads = [target.post(peer, range(BLOCKS - 1), range(BLOCKS - 1)) for _ in range(2)]
    under_way(target)
    target.backend.forget(peer)
    for read in reads:
        outcome = read.wait(WAIT_S)
        assert outcome is not None
        assert outcome.error == "unreachable"
    until(lambda: target.device.live == 0 and source.device.live == 1)
    # The other side forgets a target that rests.
    source.backend.forget(other.backend.describe())
    until(lambda: source.device.live == 0)
    assert other.device.live == 1
    source.backend.forget(b"no description")
    # Where the process lives after all, it is met anew.
    assert last(target, peer) == ""
    assert last(other, peer) == ""


def test_a_communicator_that_says_it_failed_ends_the_read(make: Make) -> None:
    source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=SLOW_S)
    target = make(Pool(BLOCKS, [BLOCK_BYTES]), loud=True)
    source.pool.fill("remote")
    read = target.post(source.backend.describe(), range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    source.device.opened[0].tear()
    outcome = read.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "error"
    assert "unhandled system error" in outcome.detail
    assert last(target, source.backend.describe()) == ""


def test_a_ring_that_never_drains_keeps_the_blocks_in_quarantine(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(posted, "FENCE_S", 0.2)
    source = make(Pool(BLOCKS, [BLOCK_BYTES]), pace_s=SLOW_S)
    target = make(Pool(BLOCKS, [BLOCK_BYTES]))
    source.pool.fill("remote")
    fence = pair_module.fence
    monkeypatch.setattr(pair_module, "fence", lambda pipe: False)
    read = target.post(source.backend.describe(), range(BLOCKS - 1), range(BLOCKS - 1))
    under_way(target)
    read.deadline = time.monotonic()
    assert read.wait(1.0) is None
    # Others are served, over a communicator and a seat of their own.
    monkeypatch.setattr(pair_module, "fence", fence)
    assert last(target, source.backend.describe()) == ""
    assert read.poll() is None
    for pipe in target.device.opened:
        if not pipe.closed and pipe.queued():
            fence(pipe)
