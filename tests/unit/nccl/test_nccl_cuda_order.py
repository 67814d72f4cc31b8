"""The streams and events of a CUDA pipe leave no order open in which a wrong byte arrives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.nccl.fake_cuda import Cuda, QueuedPacker, Rank

from kvferry.errors import BackendError

pytest.importorskip("torch")

from kvferry_backends.nccl import cuda_device
from kvferry_backends.nccl.cuda_device import CudaDevice, CudaPipe
from kvferry_backends.nccl.options import NcclOptions
from kvferry_backends.nccl.pipe import RECEIVER, SENDER
from kvferry_backends.packing.ring import make_ring

BLOCKS = 40
WIDTHS = [96, 160]
SEEDS = 30


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Cuda, list[Pool], list[Any]]]:
    """Two pools and the two ends of a pipe between them, on a CUDA whose lots are ``seed``."""

    def make(seed: int, slots: int) -> tuple[Cuda, list[Pool], list[Any]]:
        cuda = Cuda(seed)
        monkeypatch.setattr(cuda_device, "torch", cuda.torch())
        monkeypatch.setattr(
            cuda_device, "make_packer", lambda regions: QueuedPacker(cuda, _host(regions))
        )
        monkeypatch.setattr(
            cuda_device,
            "make_ring",
            lambda kind, index, *, slots, slot_bytes: make_ring(
                "host", 0, slots=slots, slot_bytes=slot_bytes
            ),
        )
        pools = [Pool(BLOCKS, WIDTHS), Pool(BLOCKS, WIDTHS)]
        pools[0].fill("source")
        nccl: Any = SimpleNamespace(version="2", join=lambda *rest: Rank(cuda))
        options = NcclOptions(slots=slots, chunk_bytes=4 * sum(WIDTHS))
        ends: list[Any] = [
            CudaDevice(_cuda(pool.regions, nth), options, nccl).open(b"", rank)
            for nth, (pool, rank) in enumerate(zip(pools, (SENDER, RECEIVER), strict=True))
        ]
        return cuda, pools, ends

    return make


def _cuda(regions: Any, device: int) -> Any:
    return msgspec.structs.replace(regions, kind="cuda", device=device)


def _host(regions: Any) -> Any:
    return msgspec.structs.replace(regions, kind="host")


def work(
    pipe: CudaPipe, put: Callable[[int, int], None], blocks: list[int], chunk: int
) -> Iterator[None]:
    """One end's part of a transfer, a host's call at a time."""
    while not pipe.settled():
        yield
    pipe.begin(blocks)
    for start in range(0, len(blocks), chunk):
        put(start, min(start + chunk, len(blocks)))
        yield
        while not pipe.settled():
            yield
    while pipe.queued():
        yield


def transfer(
    cuda: Cuda, ends: list[Any], sources: list[int], targets: list[int], lots: random.Random
) -> None:
    """Both hosts and the device, in an order by lot."""
    hosts = [work(ends[0], ends[0].send, sources, 3), work(ends[1], ends[1].receive, targets, 3)]
    idle = 0
    while hosts:
        host = lots.choice(hosts)
        if next(host, "ended") == "ended":
            hosts.remove(host)
        cuda.step(lots.randrange(6))
        idle += 1
        assert idle < 10_000, "the transfer does not end"


def wrong_blocks(make: Any, seed: int, slots: int) -> list[int]:
    """Target blocks with wrong bytes, after two transfers one after the other."""
    cuda, pools, ends = make(seed, slots)
    lots = random.Random(seed)
    sources, targets = lots.sample(range(BLOCKS), 32), lots.sample(range(BLOCKS), 32)
    for part in (slice(0, 20), slice(20, 32)):
        transfer(cuda, ends, sources[part], targets[part], lots)
    return [
        target
        for source, target in zip(sources, targets, strict=True)
        if pools[1].get(target) != pattern("source", source, sum(WIDTHS))
    ]


@pytest.mark.parametrize("slots", [2, 3])
def test_every_block_is_right_in_whatever_order(pipes: Any, slots: int) -> None:
    assert [wrong_blocks(pipes, seed, slots) for seed in range(SEEDS)] == [[]] * SEEDS


@pytest.mark.parametrize("missing", ["the wait for a free slot", "the wait for a packed slot"])
def test_without_one_of_its_waits_some_order_is_wrong(
    pipes: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Negative control."""
    if missing == "the wait for a free slot":
        monkeypatch.setattr(CudaPipe, "_until_free", lambda self, stream, slot: None)
    else:
        monkeypatch.setattr("tests.unit.nccl.fake_cuda.Stream.wait_event", lambda self, event: None)
    assert any(wrong_blocks(pipes, seed, 2) for seed in range(SEEDS))


def test_after_an_abort_both_streams_run_dry_without_the_other_end(pipes: Any) -> None:
    cuda, pools, ends = pipes(1, 2)
    receiving = work(ends[1], ends[1].receive, list(range(30)), 3)
    for _ in range(60):
        next(receiving)
        cuda.step(3)
    assert ends[1].queued() == 10
    assert not ends[1].drained()
    before = bytes(pools[1].memory)
    ends[1].abort()
    cuda.step(1000)
    assert ends[1].drained()
    # What had been queued did scatter: hence the blocks wait for drained(), not for abort().
    assert bytes(pools[1].memory) != before
    ends[1].close()


def test_memory_of_another_kind_is_refused(pipes: Any) -> None:
    with pytest.raises(BackendError, match="moves CUDA memory"):
        CudaDevice(Pool(1, [8]).regions, NcclOptions(), SimpleNamespace(version="2"))  # type: ignore[arg-type]
