"""``kvferry bench policy`` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvferry.bench.policy.policies import POLICIES
from kvferry.bench.policy.sizes import parse_budgets
from kvferry.bench.policy.study import comes_to
from kvferry.cli.main import app
from kvferry.errors import ConfigError

runner = CliRunner()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eight sessions of five turns, a minute apart, and as many prompts that come once."""
    path, lines, at_ms = tmp_path / "trace.jsonl", [], 0
    for turn in range(5):
        for session in range(8):
            at_ms += 7_500
            ids = [1000 * session + block for block in range(20 + 2 * turn)]
            for chain in (ids, [10**6 + at_ms + block for block in range(20)]):
                rest = [10**8 + len(lines)]
                line = {
                    "timestamp": at_ms,
                    "input_length": 512 * len(chain) + 7,
                    "output_length": 200,
                    "hash_ids": [*chain, *rest],
                }
                lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    return path


def asked(*words: str) -> tuple[int, str]:
    done = runner.invoke(app, ["bench", "policy", *words])
    return done.exit_code, done.output


def test_the_document_has_a_row_for_each_policy_and_budget(trace: Path, tmp_path: Path) -> None:
    told = tmp_path / "policy.json"
    options = ["--budget", "20GB,60GB", "--hbm-gb", "4", "--json", str(told)]
    code, output = asked("--trace", str(trace), *options)
    assert code == 0, output
    document = json.loads(told.read_text())
    assert document["trace"]["requests"] == 80
    assert document["trace"]["sessions"] == 48
    rows = document["rows"]
    assert [row["policy"] for row in rows] == ["infinite", *list(POLICIES)[1:] * 2]
    for row in rows:
        assert row["hit_tokens"] + row["computed_tokens"] == document["trace"]["prompt_tokens"]
        assert 0 <= row["share_of_infinite"] <= 1
        assert row["ttft_s_p50"] <= row["ttft_s_p95"] <= row["ttft_s_p99"]
        each = row["hbm_bytes_per_engine"] + row["host_bytes_per_engine"]
        assert each * 4 <= row["budget_bytes"]
    for policy in POLICIES:
        assert f"\n{policy} " in output
    assert "TTFT is a model's" in output


def test_the_same_trace_gives_the_same_figures(trace: Path) -> None:
    words = ("--trace", str(trace), "--budget", "20GB", "--policy", "ours,ttl", "--json", "-")
    first, second = (json.loads(asked(*words)[1]) for _ in range(2))
    assert first["rows"] == second["rows"]
    assert [row["policy"] for row in first["rows"]] == ["infinite", "ours", "ttl"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--budget", "some"], "--budget 'some' is no budget; write it as 800GB, 1.5TB or 20%"),
        (["--budget", "0%"], "is no budget"),
        (["--budget", "1GB"], "the longest request needs"),
        (["--policy", "ours,best"], "--policy 'best' is not known: use infinite, ours"),
        (["--shape", "1b"], "--shape '1b' is not known: use 8b or 70b"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json cannot be written"),
    ],
)
def test_bad_options_are_named_with_the_cure(trace: Path, words: list[str], why: str) -> None:
    code, output = asked("--trace", str(trace), *words)
    assert code == 2
    assert why in " ".join(output.split())
    assert "Traceback" not in output


def test_a_bad_trace_is_a_message(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[]\n")
    code, output = asked("--trace", str(bad))
    assert code == 2
    assert "bad.jsonl line 1: " in output


def test_help_says_what_is_compared() -> None:
    code, output = asked("--help")
    assert code == 0
    for option in ("--trace", "--budget", "--policy", "--shape", "--ttl-s", "--json"):
        assert option in output


def test_budgets() -> None:
    assert parse_budgets(["2TB,800GB", "10%"], 10**13) == [8 * 10**11, 10**12, 2 * 10**12]
    with pytest.raises(ConfigError, match="--budget '5' is no budget"):
        parse_budgets(["5"], 1)


def row(policy: str, budget: int, share: float, delayed: int = 0) -> dict[str, object]:
    return {
        "policy": policy,
        "budget_bytes": budget,
        "share_of_infinite": share,
        "requests": 100,
        "requests_delayed": delayed,
    }


def test_a_share_that_makes_requests_wait_does_not_count() -> None:
    said = comes_to(
        [
            row("infinite", 0, 1.0),
            row("ours", 10**12, 0.8),
            row("ours", 2 * 10**12, 0.95),
            row("ttl", 10**12, 0.92, delayed=50),
            row("ttl", 2 * 10**12, 0.89),
        ]
    )
    assert said == [
        "ours has 90% of the infinite cache's hits from 2.00 TB on (best 95.0%)",
        "ttl does not have 90% of the infinite cache's hits with any of these budgets; requests "
        "wait for memory up to 1.00 TB (best 92.0%)",
    ]
