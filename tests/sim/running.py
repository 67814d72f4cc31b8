"""Runs the simulator as a command, for it replaces the clocks and locks of whole modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 540
JOBS = "2"


def sim(tmp_path: Path, *arguments: str, hash_seed: str = "0") -> tuple[int, list[Any], str]:
    """Exit code, outcomes and what was printed."""
    file = tmp_path / f"outcomes-{hash_seed}.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--jobs", JOBS, "--json", str(file), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    outcomes = json.loads(file.read_text()) if file.exists() else []
    return done.returncode, outcomes, done.stdout + done.stderr
