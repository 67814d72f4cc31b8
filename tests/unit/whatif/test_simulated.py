"""Simulated fleets, shipped code throughout: their decisions again, and forecasts against runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 240.0
QUIET = ("faults_per_s=0.0", "ledger_loses=0.0")
SCRIPTED = (
    *QUIET,
    *("nodes=2", "clients=1", "coordinators=1", "busy_s=60", "lease_budget=0.0"),
    *("forge_share=0.0", "abort_share=0.0", "overlap_share=0.0", "spike_share=0.0"),
    *("latency_s=0.001", "read_fails=0.0", "read_hangs=0.0"),
    *("stream_bytes=1073741824", "batch_events=256", "outbox_facts=8192"),
)


def simulated(*arguments: str) -> list[Any]:
    """What the process printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.whatif.simulated", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("seeds", "knobs"),
    [(("5",), (*QUIET, "busy_s=20")), (("1", "3"), ())],
    ids=["quiet", "with-faults"],
)
def test_decisions_of_a_simulated_fleet_are_reproduced(
    seeds: tuple[str, ...], knobs: tuple[str, ...]
) -> None:
    found = simulated("again", *seeds, *knobs)
    assert [one["violations"] for one in found] == [0] * len(seeds)
    for one in found:
        assert one["reproduced"] >= 0.99, one
        assert one["forged"] < 0.9, "a ledger that tells of other decisions is found out"
    # How many one seed makes changes with everything that a fleet does.
    assert sum(one["decisions"] for one in found) >= 30 * len(seeds)
    assert any(one["kinds"].get("plan", 0) > 5 for one in found)


def test_rests_of_hinted_prefixes_are_weighed_as_the_nodes_weighed_them() -> None:
    found = simulated("again", "11", "12")
    assert [one["violations"] for one in found] == [0, 0]
    # Which of them are too dear changes with everything that a fleet does.
    assert sum(sum(one["rests"].values()) for one in found) > 0, found
    for one in found:
        assert not [why for why in one["why"].get("hint", ()) if "again" in why], one


@pytest.mark.parametrize("sizes", [("24", "96"), ("16", "48")])
def test_pools_of_another_size_compute_what_was_forecast(sizes: tuple[str, str]) -> None:
    """The same conversations on both, and each forecast from the ledger of the other."""
    (found,) = simulated("backtest", *sizes, *SCRIPTED)
    assert found["violations"] == 0
    for way in ("larger", "smaller"):
        one = found[way]
        assert one["requests"][0] == one["requests"][1]
        assert one["reproduced"] >= 0.99
        assert one["low"] <= one["real"] <= one["high"], one
        # The control: that nothing would change is far from what came, and out of the band.
        assert abs(one["was"] - one["real"]) > one["high"] - one["low"], one
        assert not one["low"] <= one["was"] <= one["high"], one
