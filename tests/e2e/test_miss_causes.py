"""Every cause of a miss, made by real engines, and told rightly by ``kvferry explain``.

A refusal by fence is the simulator's: ``tests/sim/test_sim_fence.py``. The cases share one
fleet and go from the gentle to the final: the last two take engines away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.misses import evicted, failed, refused
from tests.e2e.misses.scene import BLOCKS, PROMPT, Scene
from tests.e2e.misses.telling import pulled
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import Transferred
from kvferry.replay.words import duration

pytestmark = pytest.mark.engine
Case = Callable[[Scene, EngineProcess], None]
GENTLE: tuple[Case, ...] = (
    evicted.never_produced,
    evicted.evicted_by_reuse,
    evicted.evicted_after_the_lease_had_ended_by_time,
    evicted.evicted_after_the_session_had_ended,
    evicted.a_longer_run_covers_a_shorter_one_until_it_goes_too,
    evicted.evicted_by_pause,
    evicted.the_same_without_a_cause_pulls,
    refused.diverged_at_a_token,
    refused.refused_by_tenant,
    refused.refused_by_space,
    failed.transfer_failed_says_where,
    failed.plan_late,
    failed.too_dear,
)
FINAL: tuple[Case, ...] = (
    failed.source_killed_while_it_is_read_and_gone_afterwards,
    failed.source_gone_by_a_clean_stop,
)


@pytest.fixture(scope="module")
def scene(plane: Plane, start_engine: StartEngine) -> Iterator[Scene]:
    relays = (Relay(), Relay())
    try:
        made = Scene(plane, start_engine, relays)
        joined(made.p0, made.p1, made.d0, made.far)
        yield made
    finally:
        for relay in relays:
            relay.close()


@pytest.mark.parametrize("case", GENTLE, ids=lambda case: case.__name__)
def test_a_miss_is_told_with_its_cause(scene: Scene, reference: EngineProcess, case: Case) -> None:
    case(scene, reference)


def test_the_story_of_a_transfer_and_of_a_block(scene: Scene, reference: EngineProcess) -> None:
    text = prompt(2_100, PROMPT)
    held = scene.hold("story-p", text)
    answer = scene.d0.run("story-d", text, kvferry={"hint": held.hint})
    told = pulled(scene, reference, text, answer)
    (transfer,) = told.story["transfers"]
    (moved,) = of(scene.plane.events(), Transferred, transfer=transfer)
    of_transfer = scene.explain(transfer)
    assert of_transfer.startswith(f"transfer {transfer}\nof requests {answer.report['request']}\n")
    assert f"{BLOCKS} blocks arrived over tcp in {duration(moved.total_ms)}" in of_transfer
    assert "p0 held them for" in of_transfer
    of_block = scene.explain(held.hint["tail"])
    assert f"block {BLOCKS - 1} of its chain (tokens 608 to 639)" in of_block
    assert "computed by p0; moved 1 time: p0 to d0" in of_block
    lines = [line.split("  ", 2)[-1].strip() for line in told.text.splitlines()]
    places = [
        next(i for i, line in enumerate(lines) if word in line)
        for word in ("pulls 20 of 20 blocks", "p0 held 20 blocks", "ended request story-d")
    ]
    assert places == sorted(places), "no effect before its cause"
    unknown = scene.plane.cli("explain", f"{answer.report['request'][:-1]}_")
    assert unknown.returncode == 1
    assert f"known requests: {answer.report['request']}" in unknown.stderr + unknown.stdout


@pytest.mark.parametrize("case", FINAL, ids=lambda case: case.__name__)
def test_a_source_that_goes_is_told(scene: Scene, reference: EngineProcess, case: Case) -> None:
    case(scene, reference)
