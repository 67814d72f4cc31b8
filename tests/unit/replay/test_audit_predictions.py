"""Predictions beside what came, in an audit's report; the impossible ones are violations."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import msgspec
import pytest
from tests.unit.cli.running import runner
from tests.unit.cli.support import Writer

from kvferry.cli.main import app
from kvferry.core.accuracy import MOVE, PREFILL
from kvferry.core.events import AnyEvent, Requested, RequestEnded, TransferFailed, Transferred
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.audit.decisions import COMPUTED, FAILED, PULLED
from kvferry.replay.audit.predictions import ErrorFactor
from kvferry.replay.audit.run import Audit, audit
from kvferry.replay.exporting import export, whole


def pulled(number: int, took_ms: float, **plan: object) -> list[AnyEvent]:
    """A pull of 4 blocks that took ``took_ms``, planned with ``plan``."""
    request, transfer = f"r{number}", f"p.{number}"
    asked = Requested(
        request=request, transfer=transfer, source="d0", wanted=6, granted=4, basis="plan", model=2
    )
    arrived = Transferred(
        transfer=transfer, request=request, source="d0", start=0, count=4, tokens=128, bytes=1,
        backend="tcp", read_ms=took_ms,
    )  # fmt: skip
    ended = RequestEnded(request=request, prompt_tokens=200, pulled_tokens=128, computed_tokens=72)
    return [msgspec.structs.replace(asked, **plan), arrived, ended]


def failed(number: int, reason: str, lost_ms: float) -> list[AnyEvent]:
    asked, _, ended = pulled(number, 0.0, predicted_ms=5.0, recompute_ms=50.0)
    end = TransferFailed(
        transfer=f"p.{number}", request=f"r{number}", source="d0", stage="pin", reason=reason,
        total_ms=lost_ms,
    )  # fmt: skip
    return [asked, end, msgspec.structs.replace(ended, pulled_tokens=0, computed_tokens=200)]


def computed(number: int, took_ms: float, **plan: object) -> list[AnyEvent]:
    """A request that pulled nothing and was predicted to take 100 ms."""
    asked = Requested(request=f"r{number}", wanted=6, miss="nothing_held", prefill_ms=100.0)
    ended = RequestEnded(
        request=f"r{number}", prompt_tokens=200, computed_tokens=200, prefill_ms=took_ms
    )
    return [msgspec.structs.replace(asked, **plan), ended]


async def written(*stories: list[AnyEvent]) -> MemoryLog:
    log = MemoryLog()
    p = Writer(log, "p0")
    await p.join(role="prefill")
    for events in stories:
        await p.write(*events)
    return log


async def audited(*stories: list[AnyEvent]) -> Audit:
    return await audit(await written(*stories))


def of(done: Audit, what: str, key: str) -> ErrorFactor:
    (one,) = [f for f in done.predictions.factors if (f.what, f.key) == (what, key)]
    return one


async def test_pulls_are_judged_by_link_and_prefills_by_node() -> None:
    plan = {"predicted_ms": 10.0, "recompute_ms": 99.0}
    took = [10.0, 5.0, 20.0, 20.0, 40.0]
    done = await audited(
        *(pulled(n, ms, **plan) for n, ms in enumerate(took)),
        computed(90, 200.0),
    )
    assert done.violations == ()
    link = of(done, MOVE, "d0>p0/tcp")
    assert (link.count, link.median, link.p95, link.took) == (5, 2.0, 4.0, 2.0)
    node = of(done, PREFILL, "p0")
    assert (node.count, node.median, node.took) == (1, 2.0, 2.0)
    everywhere = of(done, MOVE, "")
    assert (everywhere.count, everywhere.median, everywhere.space) == (5, 2.0, "")


async def test_half_as_long_is_as_far_off_as_twice_as_long() -> None:
    done = await audited(pulled(1, 5.0, predicted_ms=10.0))
    link = of(done, MOVE, "")
    assert (link.median, link.took) == (2.0, 0.5)


async def test_hindsight_says_which_decisions_were_wrong_and_what_they_cost() -> None:
    plan = {"predicted_ms": 10.0, "recompute_ms": 30.0}
    dear = {
        "source": "d0", "miss": "too_dear", "predicted_ms": 60.0, "recompute_ms": 50.0,
    }  # fmt: skip
    done = await audited(
        pulled(1, 12.0, **plan),
        pulled(2, 42.0, **plan),
        failed(3, "deadline", 70.0),
        failed(4, "aborted", 70.0),
        computed(5, 100.0, **dear),  # 50 of 100 ms for what a pull would have brought in 60
        computed(6, 180.0, **dear),  # 90
    )
    assert done.violations == ()
    found = {one.kind: one for one in done.predictions.decisions}
    assert set(found) == {PULLED, FAILED, COMPUTED}
    assert (found[PULLED].judged, found[PULLED].wrong) == (2, 1)
    assert found[PULLED].cost_ms == pytest.approx(12.0)
    assert (found[FAILED].judged, found[FAILED].wrong, found[FAILED].cost_ms) == (1, 1, 70.0)
    assert (found[COMPUTED].judged, found[COMPUTED].wrong) == (2, 1)
    assert found[COMPUTED].cost_ms == pytest.approx(30.0)


IMPOSSIBLE = [
    ({"predicted_ms": -1.0}, "predicted_ms is -1"),
    ({"predicted_ms": math.nan}, "predicted_ms is nan"),
    ({"recompute_ms": math.inf}, "recompute_ms is inf"),
    ({"predicted_ms": 5.0, "queue_ms": 6.0}, "queue_ms 6"),
    ({"predicted_ms": 5.0, "basis": ""}, "without a basis"),
    ({"predicted_ms": 5.0, "source": "", "basis": "plan"}, "from nobody"),
]


@pytest.mark.parametrize(("plan", "story"), IMPOSSIBLE, ids=[case[1] for case in IMPOSSIBLE])
async def test_an_impossible_prediction_is_a_violation(plan: dict[str, object], story: str) -> None:
    done = await audited([pulled(1, 5.0, **plan)[0], *failed(1, "deadline", 1.0)[1:]])
    assert [(one.invariant, story in one.story) for one in done.violations] == [
        ("prediction", True)
    ]


async def test_a_known_queue_before_a_link_that_is_not_known_is_possible() -> None:
    done = await audited(pulled(1, 5.0, queue_ms=6.0, recompute_ms=9.0))
    assert done.violations == ()


async def test_a_wrong_prediction_is_none() -> None:
    done = await audited(pulled(1, 5_000.0, predicted_ms=0.5, recompute_ms=0.6))
    assert done.violations == ()
    assert of(done, MOVE, "").median == pytest.approx(10_000.0)


async def test_nothing_to_judge_says_so() -> None:
    done = await audited()
    assert (done.predictions.factors, done.predictions.decisions) == ((), ())


async def test_of_very_many_an_even_sample_tells_the_percentiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvferry.replay.audit.predictions.VALUES_PER_KEY_MAX", 10)
    done = await audited(*(pulled(n, 10.0 + n, predicted_ms=10.0) for n in range(80)))
    link = of(done, MOVE, "")
    assert link.count == 80
    assert link.median == pytest.approx(5.0, rel=0.2)
    assert link.p95 == pytest.approx(8.5, rel=0.1)


def test_the_command_shows_them(tmp_path: Path) -> None:
    file = tmp_path / "a.kvf"

    async def record() -> None:
        log = await written(pulled(1, 20.0, predicted_ms=10.0, recompute_ms=15.0))
        await export(log, file, await whole(log))

    asyncio.run(record())
    told = runner.invoke(app, ["audit", "--file", str(file)])
    assert told.exit_code == 0, told.output
    (row,) = [line for line in told.stdout.splitlines() if "d0>p0/tcp" in line]
    assert row.split() == ["pull", "d0>p0/tcp", "1", "2.00×", "2.00×", "2.00×"]
    assert "decisions: 1 of 1 were wrong in hindsight (100.0 %) and cost 5.0 ms" in told.stdout
    document = json.loads(runner.invoke(app, ["audit", "--file", str(file), "--json"]).stdout)
    assert document["predictions"]["decisions"] == [
        {"kind": "pulled", "judged": 1, "wrong": 1, "cost_ms": 5.0}
    ]
