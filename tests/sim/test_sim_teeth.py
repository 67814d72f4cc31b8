"""The checkers have teeth: each seeded bug is caught, and its seed is clean without it."""

from __future__ import annotations

from pathlib import Path

from tests.sim.running import sim

BUGS_MIN = 12


def test_every_seeded_bug_is_caught_by_its_checker(tmp_path: Path) -> None:
    code, found, said = sim(tmp_path, "--teeth")
    assert len(found) >= BUGS_MIN
    assert [one["bug"] for one in found if not one["seed"]] == [], said
    assert [one for one in found if one["control"]] == [], said
    assert code == 0, said
