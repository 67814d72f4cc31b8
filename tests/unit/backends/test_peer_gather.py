"""What the gather kernel copies, where Triton is installed (a CPU is enough)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

CASES = {
    "layers of one size": ([4096] * 3, 0, 5),
    "more than one chunk a block": ([65536], 16, 3),
    "gaps": ([4096, 4096], 8, 7),
    "spans of several sizes, none a whole word": ([1, 77, 4099, 640], 13, 6),
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_copies_these_blocks_and_nothing_else() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unit.backends.gather_process", json.dumps([*CASES.values()])],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["wide"] for row in rows] == [True, True, True, False]
    for name, row in zip(CASES, rows, strict=True):
        assert row["changed"], f"{name}: the case would pass without a copy"
        assert row["equal"], name
