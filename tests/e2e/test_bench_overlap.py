"""The benchmark of overlapped prompts runs, and its arms are what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.bench_overlap import BLOCK, STARTS, run

pytestmark = pytest.mark.engine


def test_it_measures_both_arms(tmp_path: Path) -> None:
    found = run(tmp_path, 2, 2048, [0.0])
    assert [row["handover_start"] for row in found["rows"]] == list(STARTS)
    for row in found["rows"]:
        assert row["ttft_ratio"] > 0
        assert row["first_token_in_turn"] > row["prefill_in_turn"] > 0
        assert row["first_token_at_once"] > 0
        assert row["held_block_s_in_turn"] > 0
        assert row["held_block_s_at_once"] > 0
    assert found["blocks"] == 2048 // BLOCK
