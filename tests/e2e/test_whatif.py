"""What `kvferry whatif` forecasts from real engines, against a real run of the other policy."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded

from kvferry.core.events import RequestEnded

POOL = 160
"""Blocks of each engine: less than half of what the conversations come to."""
BLOCK_BYTES = BLOCK * 1024
HOST_BYTES = 2_000 * BLOCK_BYTES
SMALL = {"kv_cache_memory_bytes": POOL * BLOCK_BYTES, "max_model_len": 2048}
TALKS, TURNS = 8, 3
FIRST, ANSWER, SAID = 900, 16, 100

pytestmark = pytest.mark.engine


class Runs(NamedTuple):
    """The same conversations on an engine without and one with a host tier."""

    plane: Plane
    bare: int
    """Prompt tokens that the one without computed."""
    hosted: int
    last: int
    """The last message of the first run."""


def converse(engine: EngineProcess, name: str, seed: int) -> None:
    """All conversations turn by turn, so that each has to wait for all others. Another ``seed``
    gives prompts of the same lengths with other words, of which two engines share nothing."""
    said = {talk: prompt(seed + talk, FIRST) for talk in range(TALKS)}
    for turn in range(1, TURNS + 1):
        for talk in range(TALKS):
            params = {"session": f"{name}-{talk}", "turn": turn}
            answer = engine.run(f"{name}-{talk}-{turn}", said[talk], tokens=ANSWER, kvferry=params)
            said[talk] = said[talk] + answer.tokens + prompt(seed + 100 * turn + talk, SAID)
            engine.until("host_copying", lambda copying: not copying)


def computed(plane: Plane, name: str) -> tuple[int, int]:
    """Prompt tokens that were computed, and the last message, once all requests ended."""

    def ours(seen: list[Recorded]) -> list[Recorded]:
        found = [
            one
            for one in seen
            if isinstance(one.event, RequestEnded) and one.event.request.startswith(name)
        ]
        return found if len(found) == TALKS * TURNS else []

    ended = ours(plane.wait_for(ours, f"every request of {name}"))
    tokens = sum(one.event.computed_tokens for one in ended)  # type: ignore[attr-defined]
    return tokens, max(one.seq for one in ended)


@pytest.fixture(scope="module")
def runs(plane: Plane, start_engine: StartEngine) -> Runs:
    bare = start_engine("bare", **SMALL)
    hosted = start_engine("hosted", connector={"host_tier_bytes": HOST_BYTES}, **SMALL)
    joined(bare, hosted)
    converse(bare, "bare", 1_000)
    first, last = computed(plane, "bare")
    converse(hosted, "hosted", 5_000)
    second, _ = computed(plane, "hosted")
    return Runs(plane, first, second, last)


def told(runs: Runs, *options: str) -> dict[str, Any]:
    done = runs.plane.cli("whatif", "--json", "--to", str(runs.last), *options)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_decision_of_real_engines_is_reproduced(runs: Runs) -> None:
    report = told(runs)
    assert report["decisions"] >= TALKS * TURNS - 2, report["not_decided"]
    assert report["reproduced"] >= 0.99, report["kinds"]
    assert report["computed_tokens"]["was"] == runs.bare


def test_the_forecast_of_a_host_tier_is_what_a_host_tier_gives(runs: Runs) -> None:
    assert runs.hosted < 0.8 * runs.bare, "the host tier makes a difference at all"
    forecast = told(runs, "--host-tier", str(HOST_BYTES))["computed_tokens"]
    assert forecast["low"] <= runs.hosted <= forecast["high"], (forecast, runs)
    band = forecast["high"] - forecast["low"]
    assert band < runs.bare - runs.hosted, "a band in which everything lies says nothing"


def test_a_forecast_of_no_change_does_not_pass_for_it(runs: Runs) -> None:
    """The control: what would be said if the host tier had no effect is out of the band."""
    forecast = told(runs, "--host-tier", str(HOST_BYTES))["computed_tokens"]
    same = told(runs, "--host-tier", "off")["computed_tokens"]
    assert same["forecast"] == runs.bare
    assert not forecast["low"] <= same["forecast"] <= forecast["high"]
