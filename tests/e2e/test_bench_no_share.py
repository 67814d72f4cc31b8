"""The benchmark of requests that share nothing runs and reports; its figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
BRIEF = ["--groups", "1", "--pairs", "5", "--prompts", "160", "--model", "tiny"]


def test_it_runs_and_reports_ratios() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_no_share", *BRIEF],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["bench"], report["pairs"]) == ("no_share", 5)
    assert sum(report["misses"].values()) == 6 * 13, "one for each request of engine on"
    assert set(report["misses"]) <= {"nothing_held", "plan_late", "no_coordinator"}
    (result,) = report["prompts"].values()
    for arm in (result, result["empty"]):
        for name in ("ttft_ratio", "throughput_ratio"):
            low, high = arm[f"{name}_95"]
            assert 0 < low <= arm[name] <= high
    assert result["ttft_ms_on"] > 0 < result["ttft_ms_off"]
    assert result["ttft_p95_ratio"] > 0
    assert result["threads_ms"] > 0
