"""The same seed is the same run, in another process and whatever Python hashes strings to."""

from __future__ import annotations

from pathlib import Path

from tests.sim.running import sim

SEEDS = "3"


def test_a_seed_replays_exactly_in_another_process(tmp_path: Path) -> None:
    _, once, said = sim(tmp_path, "--seeds", SEEDS, hash_seed="1")
    _, again, _ = sim(tmp_path, "--seeds", SEEDS, hash_seed="2")
    assert once, said
    digests = [outcome["digest"] for outcome in once]
    assert digests == [outcome["digest"] for outcome in again]
    assert len(set(digests)) == len(digests), "different seeds are different runs"


def test_a_failing_seed_prints_its_knobs_and_its_trace(tmp_path: Path) -> None:
    arguments = ("--profile", "peers", "--seed", "1", "--bug", "outcome-twice")
    code, outcomes, said = sim(tmp_path, *arguments, "--trace")
    assert code == 1
    assert outcomes[0]["violations"], said
    assert "knobs" in said
    assert "has a second outcome" in said
    assert "again: python -m tests.sim --profile peers --seed 1" in said
    assert len(outcomes[0]["trace"]) > 100
    code, narrowed, said = sim(tmp_path, *arguments, "--knob", "nodes=2", "--knob", "busy_s=2.0")
    assert narrowed[0]["knobs"]["nodes"] == 2
    assert narrowed[0]["digest"] != outcomes[0]["digest"]


def test_wrong_knobs_are_refused_by_name(tmp_path: Path) -> None:
    code, _, said = sim(tmp_path, "--seed", "1", "--knob", "node=2")
    assert code == 2
    assert "there is no knob 'node'" in said
    code, _, said = sim(tmp_path, "--seed", "1", "--knob", 'nodes="many"')
    assert code == 2
    assert "does not fit" in said
    code, _, said = sim(tmp_path, "--seed", "1", "--bug", "no-such")
    assert code == 2
    assert "no bug 'no-such'" in said
