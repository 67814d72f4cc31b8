"""A rank's copies and loads: on a thread, each reported once, damage found."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.peers.support import eventually

from kvferry.node.pull.jobs import PullResult
from kvferry.ports.backend import Verify
from kvferry_backends.host_tier.host import HostMover
from kvferry_backends.host_tier.memory import make_pool
from kvferry_backends.layout import HostPool
from kvferry_connectors.vllm.host_worker import BACKEND, QUEUE_MAX, HostWorker
from kvferry_connectors.vllm.metadata import CopyOrder, LoadJob, RankCopied

SIZE = 4096


class Gated(HostMover):
    """Copies when the test lets it."""

    def __init__(self, *pools: Any) -> None:
        super().__init__(*pools)
        self.gate = threading.Event()
        self.gate.set()
        self.did: list[str] = []
        self.broken = False

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        assert self.gate.wait(30)
        self.did.append("copy")
        if self.broken:
            raise RuntimeError("the device is gone")
        super().to_host(blocks, slots)

    def to_engine(self, slots: Sequence[int], blocks: Sequence[int], point: Any) -> None:
        self.did.append("load")
        if self.broken:
            raise RuntimeError("the device is gone")
        super().to_engine(slots, blocks, point)


class Rank:
    def __init__(self, verify: Verify = Verify.FULL) -> None:
        self.engine = Pool(64, [SIZE])
        self.engine.fill("kept")
        regions = make_pool(self.engine.regions, 40)
        self.slots = HostPool(regions)
        self.mover = Gated(self.engine.regions, regions)
        self.worker = HostWorker(self.mover, regions, 3, verify)

    def copy(self, blocks: Sequence[int], slots: Sequence[int], number: int = 1) -> None:
        self.worker.copy(CopyOrder(number, tuple(blocks), tuple(slots)))

    def copied(self, count: int = 1) -> list[RankCopied]:
        found: list[RankCopied] = []
        assert eventually(
            lambda: bool(found.extend(self.worker.take_copied()) or len(found) >= count)
        )
        return found

    def load(
        self, name: str, slots: Sequence[int], targets: Sequence[int], ms: int = 60_000
    ) -> None:
        self.worker.load(
            LoadJob(
                transfer=name,
                request=f"r-{name}",
                address="",
                incarnation="life",
                hashes=tuple(bytes([t]) * 32 for t in targets),
                start=0,
                target_blocks=tuple(targets),
                deadline_ms=ms,
                host_slots=tuple(slots),
            )
        )

    def loaded(self, count: int = 1) -> list[PullResult]:
        found: list[PullResult] = []
        assert eventually(
            lambda: bool(found.extend(self.worker.take_loaded()) or len(found) >= count)
        )
        return found


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.mover.gate.set()
    made.worker.close()


def test_blocks_come_back_as_they_were(rank: Rank) -> None:
    rank.copy([5, 6, 9], [0, 1, 2])
    assert rank.copied() == [RankCopied(1, 3, True)]
    rank.engine.fill("overwritten")
    rank.load("t.1", [0, 1, 2], [20, 21, 40])
    (result,) = rank.loaded()
    assert (result.ok, result.count, result.host_blocks) == (True, 3, 3)
    assert (result.backend, result.bytes, result.verified_blocks) == (BACKEND, 3 * SIZE, 3)
    for block, target in ((5, 20), (6, 21), (9, 40)):
        assert rank.engine.get(target) == pattern("kept", block, SIZE)
        assert rank.engine.get(target) != pattern("overwritten", target, SIZE)
    assert rank.worker.take_loaded() == []


def test_damage_is_found_before_a_block_of_the_engine_is_touched(rank: Rank) -> None:
    rank.copy([5, 6], [0, 1])
    rank.copied()
    rank.slots.block(1)[0][7] ^= 1
    rank.load("t.1", [0, 1], [20, 21])
    (result,) = rank.loaded()
    assert (result.ok, result.stage, result.reason) == (False, "read", "digest")
    assert result.failed_blocks == (20, 21)
    assert "slot 1" in result.detail
    assert rank.engine.get(20) == pattern("kept", 20, SIZE)
    rank.copy([6], [1], 2)
    rank.copied()
    rank.load("t.2", [0, 1], [20, 21])
    assert rank.loaded()[0].ok, "a slot that is filled anew has a digest of its own"


def test_without_verification_damage_is_not_found() -> None:
    rank = Rank(Verify.OFF)
    rank.copy([5], [0])
    rank.copied()
    rank.slots.block(0)[0][7] ^= 1
    rank.load("t.1", [0], [20])
    (result,) = rank.loaded()
    assert (result.ok, result.verified_blocks) == (True, 0)
    assert rank.engine.get(20) != pattern("kept", 5, SIZE)
    rank.worker.close()


def test_a_load_goes_before_the_copies_that_wait(rank: Rank) -> None:
    rank.copy([5], [0])
    rank.copied()
    rank.mover.did.clear()
    rank.mover.gate.clear()
    for number in (2, 3, 4):
        rank.copy([number], [number], number)
    rank.load("t.1", [0], [20])
    rank.mover.gate.set()
    assert rank.loaded()[0].ok
    assert len(rank.copied(3)) == 3
    assert rank.mover.did.index("load") <= 1, "behind the one under way at most"


def test_a_cancelled_and_a_late_load_end_without_a_copy(rank: Rank) -> None:
    rank.copy([5], [0])
    rank.copied()
    rank.mover.gate.clear()
    rank.copy([6], [1], 2)
    assert eventually(lambda: not rank.worker._copies)
    rank.load("t.1", [0], [20])
    rank.load("t.2", [0], [21], ms=0)
    rank.worker.cancel("t.1")
    rank.worker.cancel("t.9")
    rank.mover.gate.set()
    ends = {result.transfer: result for result in rank.loaded(2)}
    assert (ends["t.1"].ok, ends["t.1"].reason) == (False, "aborted")
    assert (ends["t.2"].ok, ends["t.2"].reason) == (False, "deadline")
    assert rank.engine.get(20) == pattern("kept", 20, SIZE)


def test_a_device_that_fails_costs_the_copy_and_the_load_only(rank: Rank) -> None:
    rank.mover.broken = True
    rank.copy([5], [0])
    (copied,) = rank.copied()
    assert (copied.ok, "device is gone" in copied.detail) == (False, True)
    rank.load("t.1", [0], [20])
    (result,) = rank.loaded()
    assert (result.ok, result.reason, result.failed_blocks) == (False, "error", (20,))
    rank.mover.broken = False
    rank.copy([5], [0], 2)
    assert rank.copied()[0].ok


def test_a_load_without_slots_fails_its_blocks_and_nothing_else(rank: Rank) -> None:
    rank.load("t.1", [], [20, 21])
    (result,) = rank.loaded()
    assert (result.ok, result.count, result.failed_blocks) == (True, 0, (20, 21))


def test_the_queues_have_an_end(rank: Rank) -> None:
    rank.mover.gate.clear()
    for number in range(QUEUE_MAX + 2):
        rank.copy([1], [1], number)
    assert rank.copied()[0].ok is False
    rank.mover.gate.set()


def test_closing_reports_nothing_more_and_takes_nothing_more() -> None:
    rank = Rank()
    rank.worker.close()
    rank.copy([1], [1])
    rank.load("t.1", [1], [20])
    assert rank.worker.take_copied()[0].ok is False
    assert rank.worker.take_loaded()[0].ok is False
