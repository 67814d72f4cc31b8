"""Retention on engines whose pools are small: nobody waits for what is offered or leased."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import BLOCK, StartEngine, free_again, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, Recorded, of

from kvferry.core.events import Evicted, PinEnded, Retained, Transferred

BLOCKS = 60
BLOCK_BYTES = BLOCK * 1024
SMALL = {"kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES, "max_model_len": 1024}
CONVERSATIONS = 40
AT_ONCE = 4
FIRST, ANSWERED, SAID = 200, 40, 50
"""Tokens of a first prompt, of an answer, and of what the user says next."""
LEASE_MS = 10_000

pytestmark = pytest.mark.engine


class Fleet:
    """Small prefill engines with a modest and an extreme budget, small decode engines with
    kvferry and without."""

    def __init__(self, start: StartEngine, model: Path) -> None:
        modest, extreme = {"lease_ms": LEASE_MS}, {"lease_ms": LEASE_MS, "lease_budget": 0.9}
        self.p0 = start("p0", connector=modest, **SMALL)
        self.p9 = start("p9", connector=extreme, **SMALL)
        self.d0 = start("d0", **SMALL)
        self.off = EngineProcess(model, "off", connector=None, **SMALL)
        self.every = (self.p0, self.p9, self.d0, self.off)


@pytest.fixture(scope="module")
def fleet(plane: Plane, start_engine: StartEngine, model: Path) -> Iterator[Fleet]:
    made = Fleet(start_engine, model)
    try:
        joined(made.p0, made.p9, made.d0)
        made.off.wait_ready()
        for engine in made.every:
            assert engine.ask("total_blocks") == BLOCKS
            engine.ask("watch")
        yield made
    finally:
        made.off.stop()


def waves(count: int) -> list[range]:
    return [range(i, min(i + AT_ONCE, count)) for i in range(0, count, AT_ONCE)]


def first_prompt(number: int) -> list[int]:
    return prompt(10_000 + number, FIRST)


def next_prompt(number: int, answer: Answer) -> list[int]:
    return first_prompt(number) + answer.tokens + prompt(20_000 + number, SAID)


def together(
    engine: EngineProcess, prompts: dict[str, list[int]], tokens: int, hints: dict[str, object]
) -> dict[str, Answer]:
    """Run several requests at a time."""
    for name, text in prompts.items():
        hint = hints.get(name)
        engine.add(name, text, tokens=tokens, kvferry={"hint": hint} if hint else None)
    return {name: engine.answer(name) for name in prompts}


def conversations(
    decode: EngineProcess, prefill: EngineProcess | None, label: str
) -> dict[int, list[list[int]]]:
    """Two turns each; through a prefill engine where there is one. Returns every answer."""
    said: dict[int, list[list[int]]] = {}
    for wave in waves(CONVERSATIONS):
        texts = {n: first_prompt(n) for n in wave}
        hints: dict[str, object] = {}
        for turn in (1, 2):
            named = {f"{label}{turn}-{n}": texts[n] for n in wave}
            if prefill is not None:
                firsts = together(prefill, named, 1, hints)
                hints = {name: answer.hint for name, answer in firsts.items()}
            answers = together(decode, named, ANSWERED, hints)
            for n in wave:
                answer = answers[f"{label}{turn}-{n}"]
                said.setdefault(n, []).append(answer.tokens)
                texts[n] = next_prompt(n, answer)
            hints = {f"{label}2-{n}": answers[f"{label}{turn}-{n}"].hint for n in wave}
    return said


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> dict[int, list[list[int]]]:
    """The same load on the engine without kvferry."""
    return conversations(fleet.off, None, "off")


def test_forty_conversations_wait_for_nothing_that_is_offered(
    fleet: Fleet, plane: Plane, expected: dict[int, list[list[int]]]
) -> None:
    start = fleet.d0.ask("free_blocks")
    assert start == BLOCKS - 1
    assert conversations(fleet.d0, fleet.p0, "on") == expected
    waits, without = fleet.d0.ask("waits"), fleet.off.ask("waits")
    assert waits.in_the_way == 0
    assert waits.preempted <= without.preempted
    assert waits.refused <= without.refused
    assert fleet.p0.ask("waits").in_the_way == 0
    assert fleet.d0.ask("free_blocks") == start, "offers hold nothing"
    plane.wait_for(lambda seen: of(seen, Evicted, reason="reuse"), "offers to be reused")
    plane.wait_for(
        lambda seen: len(of(seen, Transferred)) >= CONVERSATIONS, "each to be pulled at least once"
    )


@pytest.mark.parametrize("name", ["p0", "p9"])
def test_leases_end_by_pressure_before_anybody_waits(
    fleet: Fleet, plane: Plane, name: str, expected: dict[int, list[list[int]]]
) -> None:
    engine = fleet.p0 if name == "p0" else fleet.p9
    before = engine.ask("waits")
    most_leased = 0
    for begin in range(0, CONVERSATIONS, 8):  # Eight prompts need the whole pool.
        wave = range(begin, begin + 8)
        named = {f"press-{name}-{n}": prompt(30_000 + n, FIRST) for n in wave}
        answers = together(engine, named, 1, {})
        most_leased = max(most_leased, engine.ask("leases"))
        expected_tokens = together(fleet.off, named, 1, {})
        assert {k: a.tokens for k, a in answers.items()} == {
            k: a.tokens for k, a in expected_tokens.items()
        }
    waits = engine.ask("waits")
    assert waits.refused == before.refused, "leases ended before the allocation, not after"
    assert waits.preempted == before.preempted
    assert most_leased >= (1 if name == "p0" else 6)

    def pressed(seen: list[Recorded]) -> bool:
        return any(
            r.node == name
            for r in seen
            if isinstance(r.event, Evicted) and r.event.reason == "pressure"
        )

    plane.wait_for(pressed, f"leases of {name} that ended by pressure")


def test_conversations_over_a_prefill_engine_that_leases_almost_everything(
    fleet: Fleet, plane: Plane, expected: dict[int, list[list[int]]]
) -> None:
    assert conversations(fleet.d0, fleet.p9, "stress") == expected
    for engine in (fleet.p9, fleet.d0):
        waits = engine.ask("waits")
        assert waits.in_the_way == 0
        assert waits.preempted == 0
    for engine in (fleet.p0, fleet.p9):
        free_again(engine, BLOCKS - 1, LEASE_MS / 1000 + 60)
        assert engine.ask("leases") == 0
    seen = plane.wait_for(
        lambda seen: (
            {r.offer for r in of(seen, Retained, tier="hbm")}
            <= {e.offer for e in of(seen, Evicted)}
        ),
        "every lease to end",
    )
    assert {e.reason for e in of(seen, Evicted) if "L" in e.offer} >= {"pressure", "expired"}
    assert not of(seen, PinEnded, how="deadline")
    check(plane, (fleet.p0, fleet.p9, fleet.d0))
