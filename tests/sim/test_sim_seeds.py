"""A fixed set of seeds is clean, and exercises what it is there for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.sim.running import sim

SEEDS = {"peers": 24, "ledger": 10, "slots": 6}
HAPPENS = {
    "peers": ("Transferred", "TransferFailed", "PinEnded", "Evicted", "RequestEnded"),
    "ledger": ("Transferred", "TransferFailed", "PinEnded", "Evicted", "RequestEnded"),
    "slots": ("SlotAnswer",),
}

FOUND = (("ledger", 169),)
"""Seeds that found something; `bugs/found.py` has what it was."""


@pytest.mark.parametrize("profile", SEEDS)
def test_a_fixed_set_of_seeds_breaks_nothing(tmp_path: Path, profile: str) -> None:
    code, outcomes, said = sim(tmp_path, "--profile", profile, "--seeds", str(SEEDS[profile]))
    assert code == 0, said
    assert len(outcomes) == SEEDS[profile]
    happened: Counter[str] = Counter()
    for outcome in outcomes:
        happened.update(outcome["counts"])
    for kind in HAPPENS[profile]:
        assert happened[kind] > SEEDS[profile], f"{kind} hardly happens: {happened}"


@pytest.mark.parametrize(("profile", "seed"), FOUND)
def test_what_found_something_finds_nothing_more(tmp_path: Path, profile: str, seed: int) -> None:
    code, outcomes, said = sim(tmp_path, "--profile", profile, "--seed", str(seed))
    assert code == 0, said
    (outcome,) = outcomes
    assert outcome["counts"]["Transferred"] > 0
