"""A storm: turns, stale hints, aborts, damaged, held and cut transfers, and scarce memory at once.

Whatever the order, each answer equals the reference and the books balance.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import TransferFailed, Transferred

pytestmark = pytest.mark.engine

STEPS = 80
AT_ONCE = 6
SMALL_POOL = {"kv_cache_memory_bytes": 4 << 20, "max_model_len": 2048}
"""128 blocks, fewer than the histories have: offers come and go, and so do pinned blocks."""


LEASE_MS = 5_000
"""Leases end soon, for the blocks are counted at the end of each storm."""


class Fleet(NamedTuple):
    engines: list[EngineProcess]
    relays: list[Relay]
    free: list[int]


@pytest.fixture(scope="module")
def fleet(plane: Plane, start_engine: StartEngine) -> Iterator[Fleet]:
    relays = [Relay(), Relay()]
    try:
        engines = [
            start_engine(
                name,
                connector={**relay.connector_options(), "lease_ms": LEASE_MS},
                **SMALL_POOL,
            )
            for name, relay in zip(("p0", "d0"), relays, strict=True)
        ]
        joined(*engines)
        plane.wait_projected()
        yield Fleet(engines, relays, [engine.ask("free_blocks") for engine in engines])
    finally:
        for relay in relays:
            relay.close()


class Turn(NamedTuple):
    engine: EngineProcess
    name: str
    history: int
    text: list[int]


class Storm:
    """What goes on, and the weather."""

    def __init__(self, fleet: Fleet, reference: EngineProcess, seed: int) -> None:
        self._fleet = fleet
        self._reference = reference
        self._draw = random.Random(seed)
        self._histories = [prompt(900 + i, 300 + 90 * i) for i in range(8)]
        self._hints: list[list[Any]] = [[] for _ in self._histories]
        self._running: deque[Turn] = deque()
        self._holding: set[Relay] = set()
        self.aborted = 0

    def step(self, number: int) -> None:
        """Start a turn, perhaps change the weather, perhaps abort somebody."""
        draw = self._draw
        history = draw.randrange(len(self._histories))
        text = self._histories[history]
        if draw.random() < 0.3:  # an edited history: the chains part somewhere
            keep = draw.randrange(len(text))
            text = text[:keep] + prompt(5000 + number, 100)
        turn = Turn(draw.choice(self._fleet.engines), f"storm-{number}", history, text)
        hints = self._hints[history]
        given = {"hint": draw.choice(hints)} if hints and draw.random() < 0.7 else None
        if draw.random() < 0.4:
            self._weather(draw.choice(self._fleet.relays))
        turn.engine.add(turn.name, text, tokens=4, kvferry=given)
        self._running.append(turn)
        if draw.random() < 0.2:
            lost = draw.choice(self._running)
            self._running.remove(lost)
            lost.engine.abort(lost.name)
            self.aborted += 1
        if len(self._running) >= AT_ONCE:
            self.settle(AT_ONCE // 2)

    def settle(self, left: int = 0) -> None:
        """Let go what is held, and take answers until so many turns are still under way."""
        for relay in list(self._holding):
            relay.carry()
        self._holding.clear()
        while len(self._running) > left:
            turn = self._running.popleft()
            answer = turn.engine.answer(turn.name)
            expected = self._reference.run(turn.name, turn.text, tokens=4).tokens
            assert answer.tokens == expected, (turn.name, answer.report)
            if answer.hint is not None:
                self._hints[turn.history].append(answer.hint)
            if len(turn.text) < 1500:
                grown = turn.text + answer.tokens + prompt(len(turn.text), 60)
                self._histories[turn.history] = grown

    def _weather(self, relay: Relay) -> None:
        somewhere = self._draw.randrange(8 * BLOCK * 1024)
        self._holding.discard(relay)
        match self._draw.randrange(6):
            case 0:
                relay.cut()
            case 1:
                relay.damage(somewhere, 64)
            case 2:
                relay.hold_requests()
                self._holding.add(relay)
            case 3:
                relay.stall_after(somewhere)
                self._holding.add(relay)
            case _:
                relay.carry()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm(fleet: Fleet, reference: EngineProcess, plane: Plane, seed: int) -> None:
    storm = Storm(fleet, reference, seed)
    for number in range(STEPS):
        storm.step(seed * 1000 + number)
    storm.settle()
    for relay in fleet.relays:
        relay.carry()
    facts = conservation.check(plane, fleet.engines)
    for engine, free in zip(fleet.engines, fleet.free, strict=True):
        conservation.blocks_return(engine, free)
    # It was a storm, and they sailed through it.
    assert storm.aborted
    assert {f.reason for f in of(facts, TransferFailed)} & {"digest", "unreachable", "void"}
    assert {t.source for t in of(facts, Transferred)} == {"p0", "d0"}
