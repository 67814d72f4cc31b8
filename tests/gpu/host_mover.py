"""The host tier's copies on a GPU: every byte there and back, how fast, and beside a busy engine.

::

    python -m tests.gpu.host_mover --out OUT

Needs torch with CUDA and triton. ``gb_per_s`` is the rate of copies of scattered blocks to pinned
host memory and back, ``memcpy_gb_per_s`` that of one plain contiguous copy each way in the same
run, and ``busy_ratio`` how much longer matrix products on the default stream take while copies to
the host go on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch
from tests.gpu.figures import Record

from kvferry.ports.backend import Regions, Span
from kvferry_backends.host_tier.memory import make_pool
from kvferry_backends.host_tier.mover import Mover, make_mover

LAYERS, PAGE = 32, 65_536
"""As Llama-8B with blocks of 16 tokens: 2 MiB a block."""
BLOCKS, SLOTS, COUNT = 1024, 512, 256
REPEATS = 9


def engine_pool() -> tuple[Any, Regions]:
    memory = torch.zeros(LAYERS * BLOCKS * PAGE, dtype=torch.uint8, device="cuda")
    spans = tuple(
        Span(memory.data_ptr() + layer * BLOCKS * PAGE, PAGE, PAGE) for layer in range(LAYERS)
    )
    return memory, Regions(spans, BLOCKS, "cuda", 0, owner=memory)


def pages(memory: Any) -> Any:
    return memory.view(LAYERS, BLOCKS, PAGE)


def check(memory: Any, mover: Mover, pool: Regions) -> None:
    """Bytes to the host, and from there into other blocks."""
    view = pages(memory)
    view.copy_(torch.randint(0, 255, view.shape, dtype=torch.uint8, device="cuda"))
    draw = random.Random(1)
    blocks, slots = draw.sample(range(BLOCKS), 100), draw.sample(range(SLOTS), 100)
    kept = view[:, blocks].clone()
    torch.cuda.synchronize()
    mover.to_host(blocks, slots)
    lent = pool.owner
    base = lent.data_ptr()  # type: ignore[attr-defined]
    for nth in (0, 57, 99):
        for layer in (0, 31):
            span = pool.spans[layer]
            at = span.address - base + slots[nth] * span.stride
            here = lent[at : at + PAGE]  # type: ignore[index]
            assert torch.equal(here, kept[layer, nth].cpu()), (nth, layer)
    view.zero_()
    targets = draw.sample(range(BLOCKS), 100)
    mover.to_engine(slots, targets, mover.point())
    assert torch.equal(view[:, targets], kept)
    others = [b for b in range(BLOCKS) if b not in set(targets)]
    assert int(view[:, others].sum()) == 0, "a block was touched that nobody named"
    swapped = torch.flip(kept, dims=[1])
    assert not torch.equal(view[:, targets], swapped), "the control: another order differs"


def rate(act: Any, size: int) -> float:
    act()
    took = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return round(size / statistics.median(took) / 1e9, 2)


def rates(mover: Mover) -> dict[str, Any]:
    draw = random.Random(2)
    blocks, slots = draw.sample(range(BLOCKS), COUNT), draw.sample(range(SLOTS), COUNT)
    size = COUNT * LAYERS * PAGE
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return {
        "gb_per_s": {
            "to_host": rate(lambda: mover.to_host(blocks, slots), size),
            "to_engine": rate(lambda: mover.to_engine(slots, blocks, mover.point()), size),
        },
        "memcpy_gb_per_s": {
            "to_host": rate(lambda: here.copy_(there, non_blocking=True), size),
            "to_engine": rate(lambda: there.copy_(here, non_blocking=True), size),
        },
    }


def busy(mover: Mover) -> float:
    """How much longer the engine's own work takes beside copies to the host."""
    left = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")

    def work() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(300):
            torch.mm(left, left)
        torch.cuda.current_stream().synchronize()
        return time.perf_counter() - began

    work()
    alone = statistics.median(work() for _ in range(5))
    stop = threading.Event()

    def copy() -> None:
        draw = random.Random(3)
        while not stop.is_set():
            mover.to_host(draw.sample(range(BLOCKS), 16), draw.sample(range(SLOTS), 16))

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        beside = statistics.median(work() for _ in range(5))
    finally:
        stop.set()
        thread.join()
    return round(beside / alone, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the result")
    args = parser.parse_args()
    record = Record(args.out / "host-mover.json")
    memory, regions = engine_pool()
    pool = make_pool(regions, SLOTS)
    mover = make_mover(regions, pool)
    check(memory, mover, pool)
    point = []
    for _ in range(200):
        began = time.perf_counter()
        mover.point()
        point.append((time.perf_counter() - began) * 1e6)
    record.put("point_us", round(statistics.median(point), 1))
    for name, figure in rates(mover).items():
        record.put(name, figure)
    record.put("busy_ratio", busy(mover))


if __name__ == "__main__":
    main()
