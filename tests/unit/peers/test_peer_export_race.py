"""Engine and readers at full speed: what is answered ``intact`` was never overwritten."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.unit.peers.support import BOUND_S, SOURCE_LIFE, chain, pin

from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.wire import Abort, Done, Granted

BLOCKS = 64
RUN = 8


class _Engine:
    """A cache whose memory is a list: block ``b`` holds the KV of hash ``memory[b]``."""

    def __init__(self, table: ExportTable) -> None:
        self.table = table
        self.memory: list[bytes] = [b""] * BLOCKS
        self.chains = [chain(f"run{i}", RUN) for i in range(32)]
        self.stop = threading.Event()

    def work(self) -> None:
        rng = random.Random(1)
        while not self.stop.is_set():
            hashes = rng.choice(self.chains)
            blocks = rng.sample(range(BLOCKS), RUN)
            for block, content in zip(blocks, hashes, strict=True):
                self.table.reused(block)
                self.memory[block] = content
            self.table.offer(hashes, blocks)
            if rng.random() < 0.02:
                self.table.clear()


class _Reader:
    def __init__(self, engine: _Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.seen: Counter[str] = Counter()
        self.opened: set[str] = set()

    def work(self) -> None:
        rng = random.Random(self.name)
        number = 0
        while not self.engine.stop.is_set():
            number += 1
            transfer = f"{self.name}.{number}"
            hashes = rng.choice(self.engine.chains)
            answer = self.engine.table.pin(self.name, pin(transfer, hashes))
            if not isinstance(answer, Granted):
                continue
            self.opened.add(transfer)
            if rng.random() < 0.1:
                self.engine.table.abort(self.name, Abort(transfer=transfer))
                continue
            read = [self._read(block, rng) for block in answer.blocks]
            right = read == list(hashes[: len(read)])
            intact = self.engine.table.done(self.name, Done(transfer=transfer)).intact
            self.seen[f"{'intact' if intact else 'void'}, {'right' if right else 'wrong'}"] += 1

    def _read(self, block: int, rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            time.sleep(1e-4)  # reading takes a while, and the engine goes on meanwhile
        return self.engine.memory[block]


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_eager_threads")
def test_intact_means_that_nothing_was_reused_in_between() -> None:
    ended: list[str] = []
    table = ExportTable(
        SOURCE_LIFE,
        on_pin_ended=lambda e: ended.append(e.transfer) if e.how != "refused" else None,
    )
    table.set_ranks([RankEndpoint(b"k" * 32, {})])
    engine = _Engine(table)
    readers = [_Reader(engine, f"p{i}") for i in range(3)]
    threads = [threading.Thread(target=part.work) for part in (engine, *readers)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + BOUND_S
    total: Counter[str] = Counter()
    # Torn reads must really have happened, else the run proves nothing.
    while total["intact, right"] < 200 or total["void, wrong"] < 20:
        total = sum((reader.seen for reader in readers), Counter())
        assert total["intact, wrong"] == 0
        assert time.monotonic() < deadline_s, f"too little happened: {total}"
        engine.stop.wait(0.01)
    engine.stop.set()
    for thread in threads:
        thread.join(BOUND_S)
    table.close()
    assert sum(reader.seen["intact, wrong"] for reader in readers) == 0
    assert sorted(ended) == sorted(set().union(*(reader.opened for reader in readers)))
