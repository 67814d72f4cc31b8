"""Blocks arrive, in order and over few communicators; what goes wrong ends both ends' one."""

from __future__ import annotations

import random
import time

import pytest
from tests.contract.pools import Pool, pattern, snapshot, wrong_bytes
from tests.unit.nccl.conftest import WAIT_S, Make
from tests.unit.nccl.host_device import HostDevice, until

from kvferry.errors import BackendError
from kvferry_backends.nccl.local import Local
from kvferry_backends.nccl.options import NcclOptions


def test_scattered_blocks_of_several_spans_arrive(make: Make) -> None:
    source, target = make(Pool(64, [3000, 5000], 7)), make(Pool(64, [3000, 5000], 3))
    source.pool.fill("source")
    sources, targets = (
        random.Random(1).sample(range(64), 40),
        random.Random(2).sample(range(64), 40),
    )
    before = snapshot(target.pool)

    outcome = target.post(source.backend.describe(), sources, targets).wait(WAIT_S)

    assert outcome is not None
    assert (outcome.error, outcome.bytes, outcome.verified_blocks) == ("", 40 * 8000, 0)
    expected = {t: pattern("source", s, 8000) for s, t in zip(sources, targets, strict=True)}
    assert wrong_bytes(before, target.pool, expected) == ([], False)
    expected[targets[0]] = pattern("source", sources[1], 8000)
    assert wrong_bytes(before, target.pool, expected) == ([targets[0]], False)


def test_one_communicator_serves_one_transfer_after_the_other(make: Make) -> None:
    source, target = make(Pool(96, [9000])), make(Pool(96, [9000]))
    source.pool.fill("many")
    reads = [
        target.post(source.backend.describe(), [n, 95 - n], [2 * n, 2 * n + 1], transfer=f"t.{n}")
        for n in range(12)
    ]
    for n, read in enumerate(reads):
        outcome = read.wait(WAIT_S)
        assert outcome is not None
        assert outcome.error == ""
        assert target.pool.get(2 * n) == pattern("many", n, 9000)
        assert target.pool.get(2 * n + 1) == pattern("many", 95 - n, 9000)
    assert (len(source.device.opened), len(target.device.opened)) == (1, 1)


def test_both_directions_at_once_have_a_communicator_each(make: Make) -> None:
    ends = make(Pool(200, [4096])), make(Pool(200, [4096]))
    reads = []
    for nth, end in enumerate(ends):
        for block in range(100):
            end.pool.put(block, pattern(str(nth), block, 4096))
        other = ends[1 - nth]
        reads += [
            end.post(other.backend.describe(), range(50), range(100, 150)),
            end.post(other.backend.describe(), range(50, 100), range(150, 200)),
        ]
    for read in reads:
        outcome = read.wait(WAIT_S)
        assert outcome is not None
        assert outcome.error == ""
    for nth, end in enumerate(ends):
        for block in range(100):
            assert end.pool.get(100 + block) == pattern(str(1 - nth), block, 4096)
        assert len(end.device.opened) == 2


def test_more_chunks_than_may_be_queued(make: Make) -> None:
    source, target = make(Pool(300, [40_000])), make(Pool(300, [40_000]), slots=2)
    source.pool.fill("long")
    outcome = target.post(source.backend.describe(), range(300), range(300)).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.memory == source.pool.memory


def test_ends_with_rings_of_different_sizes_agree_on_the_smaller(make: Make) -> None:
    source = make(Pool(64, [30_000]), chunk_bytes=200_000)
    target = make(Pool(64, [30_000]), chunk_bytes=400_000)
    source.pool.fill("sizes")
    outcome = target.post(source.backend.describe(), range(64), range(64)).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.memory == source.pool.memory


@pytest.mark.parametrize(
    ("blocks", "chunk"),
    [(1, 1), (256, 256), (300, 256), (1536, 256), (2400, 400), (9000, 512)],
)
def test_chunks_are_as_large_as_pays_and_as_small_as_overlaps(blocks: int, chunk: int) -> None:
    local = Local("i", HostDevice(Pool(1, [65536]).regions, NcclOptions()), 1, (65536,), 3, 512)
    assert local.chunk_blocks(blocks) == chunk
    assert [stop - start for start, stop in local.ranges(blocks, chunk)][:-1] == [chunk] * (
        -(-blocks // chunk) - 1
    )


def test_a_refused_grant_moves_nothing_and_costs_no_communicator(make: Make) -> None:
    permitted: list[bool] = [True]
    source = make(Pool(8, [4096]), lambda transfer, grant, packed: permitted[0])
    target = make(Pool(8, [4096]))
    source.pool.fill("secret")
    assert target.post(source.backend.describe(), [0], [0]).wait(WAIT_S)
    permitted[0] = False
    before = snapshot(target.pool)
    outcome = target.post(source.backend.describe(), [1], [1]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "refused"
    assert snapshot(target.pool) == before
    permitted[0] = True
    outcome = target.post(source.backend.describe(), [2], [2]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.get(2) == pattern("secret", 2, 4096)
    assert (len(source.device.opened), len(target.device.opened)) == (1, 1)


def test_a_grant_that_ends_in_mid_read_ends_the_sending(make: Make) -> None:
    asked: list[int] = []

    def authorize(transfer: str, grant: bytes, packed: bytes) -> bool:
        asked.append(1)
        return transfer != "cut" or len(asked) < 4

    source, target = make(Pool(64, [65536]), authorize), make(Pool(64, [65536]))
    source.pool.fill("cut")
    outcome = target.post(source.backend.describe(), range(32), range(32), transfer="cut").wait(
        WAIT_S
    )
    assert outcome is not None
    assert outcome.error == "refused"
    until(lambda: source.device.live == 0 and target.device.live == 0)
    outcome = target.post(source.backend.describe(), [40], [40]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.get(40) == pattern("cut", 40, 65536)
    assert (len(source.device.opened), len(target.device.opened)) == (2, 2)


@pytest.mark.parametrize("failing", ["source", "target"])
def test_an_end_that_cannot_open_fails_the_read_and_the_next_succeeds(
    make: Make, failing: str
) -> None:
    source, target = make(Pool(8, [4096])), make(Pool(8, [4096]))
    source.pool.fill("memory")
    (source if failing == "source" else target).device.fail_next_open = True
    outcome = target.post(source.backend.describe(), [1], [1]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "error"
    assert "out of memory" in outcome.detail
    outcome = target.post(source.backend.describe(), [1], [1]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.get(1) == pattern("memory", 1, 4096)


def test_communicators_are_bounded_and_the_least_used_makes_room(make: Make) -> None:
    sources = [make(Pool(4, [4096])) for _ in range(4)]
    target = make(Pool(4, [4096]), communicators=2)
    for nth, source in enumerate(sources):
        source.pool.fill(str(nth))
    for nth in (0, 1, 0, 2, 0, 3, 1):
        outcome = target.post(sources[nth].backend.describe(), [1], [2]).wait(WAIT_S)
        assert outcome is not None
        assert outcome.error == ""
        assert target.pool.get(2) == pattern(str(nth), 1, 4096)
        assert target.device.live <= 2
    # 0 was never the least used one; 1 had to be made twice.
    assert len(target.device.opened) == 5
    assert [len(source.device.opened) for source in sources] == [1, 2, 1, 1]


def test_a_source_bounds_its_communicators_too(make: Make) -> None:
    source = make(Pool(4, [4096]), communicators=1)
    targets = [make(Pool(4, [4096])) for _ in range(3)]
    source.pool.fill("one")
    for _ in range(2):
        for target in targets:
            outcome = target.post(source.backend.describe(), [1], [2]).wait(WAIT_S)
            assert outcome is not None
            assert outcome.error == ""
            assert target.pool.get(2) == pattern("one", 1, 4096)
            assert source.device.live == 1


def test_a_crowd_that_shares_few_communicators(make: Make) -> None:
    ends = [make(Pool(50, [4096]), communicators=2) for _ in range(4)]
    for nth, end in enumerate(ends):
        for block in range(10):
            end.pool.put(block, pattern(str(nth), block, 4096))
    left = [(taker, giver) for taker in range(4) for giver in range(4) if taker != giver]
    give_up = time.monotonic() + WAIT_S
    while left:
        assert time.monotonic() < give_up
        reads = [
            ends[taker].post(
                ends[giver].backend.describe(),
                range(10),
                range(10 + 10 * giver, 20 + 10 * giver),
            )
            for taker, giver in left
        ]
        again = []
        for pair, read in zip(left, reads, strict=True):
            outcome = read.wait(WAIT_S)
            assert outcome is not None
            if outcome.error:
                assert "communicators are busy" in outcome.detail
                again.append(pair)
        left = again
    for taker in range(4):
        assert ends[taker].device.live <= 4
        for giver in set(range(4)) - {taker}:
            for block in range(10):
                found = ends[taker].pool.get(10 + 10 * giver + block)
                assert found == pattern(str(giver), block, 4096)


def test_what_nccl_cannot_connect_is_refused_by_name(make: Make) -> None:
    source, target = make(Pool(4, [64])), make(Pool(4, [64]))
    source.device.gpu = target.device.gpu
    with pytest.raises(BackendError, match="same GPU"):
        target.post(source.backend.describe(), [0], [0])
    source.device.gpu = "another"
    source.device.version = "1.0"
    with pytest.raises(BackendError, match="same build of torch"):
        target.post(source.backend.describe(), [0], [0])
