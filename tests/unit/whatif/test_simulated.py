"""Decisions of simulated fleets, shipped code throughout, are decided again from their ledgers."""

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


def decided(*arguments: str) -> list[dict[str, Any]]:
    """What comes of each seed."""
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
    [
        (("3", "5"), ("faults_per_s=0.0", "ledger_loses=0.0", "busy_s=20")),
        (("1", "3"), ()),
    ],
    ids=["quiet", "with-faults"],
)
def test_decisions_of_a_simulated_fleet_are_reproduced(
    seeds: tuple[str, ...], knobs: tuple[str, ...]
) -> None:
    found = decided(*seeds, *knobs)
    assert [one["violations"] for one in found] == [0] * len(seeds)
    for one in found:
        assert one["decisions"] >= 30, one
        assert one["reproduced"] >= 0.99, one
        assert one["forged"] < 0.9, "a ledger that tells of other decisions is found out"
    assert any(one["kinds"].get("plan", 0) > 5 for one in found)
