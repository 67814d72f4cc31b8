"""One contender under one load, alone in a process:
``python -m kvferry.bench.index.child speed|memory CONTENDER EVENTS QUESTIONS LOOKUPS``.

Reads two files that :mod:`kvferry.bench.index.files` wrote and prints :class:`Speed` or
:class:`Memory` as JSON.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec

from kvferry.bench.index.contenders import PEERS, Contender, contender
from kvferry.bench.index.files import read_events, read_questions
from kvferry.bench.index.load import SEED
from kvferry.bench.results import percentile

SPEED, MEMORY = "speed", "memory"
WARM_UP = 20
"""Questions before the first that is timed."""


class Speed(msgspec.Struct, kw_only=True):
    """What a process found that takes time."""

    apply_s: float
    lookup_us_p50: float
    lookup_us_p99: float
    events: int
    event_bytes: int
    answered_blocks: int
    """Summed over the questions: two that disagree did not see the same load."""


class Memory(msgspec.Struct, kw_only=True):
    """What a process found that weighs memory."""

    grown_bytes: int
    """By the index and whatever it took to build it."""


def speed(name: str, events: Path, questions: Path, lookups: int) -> Speed:
    """Build the index and ask it."""
    index = contender(name)
    apply_s, count, size = 0.0, 0, 0
    for part in read_events(events):
        begun = time.perf_counter()
        index.apply(part)
        apply_s += time.perf_counter() - begun
        count += len(part)
        size += sum(len(report.data) for report in part)
    asked = [index.question(hashes) for hashes in read_questions(questions)]
    answered = sum(index.blocks(index.ask(question)) for question in asked)
    took_us = _ask(index, asked, lookups)
    return Speed(
        apply_s=apply_s,
        lookup_us_p50=percentile(took_us, 0.5),
        lookup_us_p99=percentile(took_us, 0.99),
        events=count,
        event_bytes=size,
        answered_blocks=answered,
    )


def memory(name: str, events: Path) -> Memory:
    """Build the index. What is written in Python has its allocations counted, for they are too
    few to be seen in the size of the process; anything else has that size looked at."""
    size = _resident_bytes if name in PEERS else _allocated_bytes
    if name not in PEERS:
        tracemalloc.start()
    next(read_events(events))  # what reading takes is taken before memory is looked at
    index = contender(name)
    gc.collect()
    before = size()
    for part in read_events(events):
        index.apply(part)
    del part
    gc.collect()
    return Memory(grown_bytes=size() - before)


def _ask(index: Contender[Any, Any], asked: list[Any], lookups: int) -> list[float]:
    """Microseconds of each question, ascending."""
    rng = random.Random(SEED)
    for question in asked[:WARM_UP]:
        index.ask(question)
    took = []
    for _ in range(lookups):
        question = rng.choice(asked)
        begun = time.perf_counter()
        index.ask(question)
        took.append((time.perf_counter() - begun) * 1e6)
    return sorted(took)


def _allocated_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(how: str, name: str, events: str, questions: str, lookups: str) -> None:
    """Print what was found."""
    found: Speed | Memory
    if how == MEMORY:
        found = memory(name, Path(events))
    else:
        found = speed(name, Path(events), Path(questions), int(lookups))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
