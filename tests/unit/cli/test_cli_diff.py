"""`kvferry diff` over files, and over a real `kvferry up`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.processes import Up
from tests.unit.cli.running import document, run, runner

from kvferry.cli import guard
from kvferry.cli.main import app


@pytest.fixture(autouse=True)
def ledger_url(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)


def test_points_of_a_ledger_and_of_its_file_differ_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "a.kvf")
    last = str(document("export", file)["ranges"]["KVF"]["last"])
    live = document("diff", "3", last, code=guard.TROUBLE)
    assert run("diff", "3", "3").endswith("what was learned\n")
    assert document("diff", last, "--other", file)["same"] is True
    # From here on there is no ledger.
    monkeypatch.setenv("KVFERRY_NATS", "nats://127.0.0.1:9")
    filed = document("diff", "3", last, "--file", file, code=guard.TROUBLE)
    assert filed["changes"] == live["changes"] != []
    assert document("diff", "--file", file, "--other", file)["same"] is True
    text = run("diff", "3", last, "--file", file, code=guard.TROUBLE)
    assert "+ transfer p.1: p0 from d0" in text
    assert "moved 8 blocks" in text
    assert "(+ only in B, - only in A)" in text


def test_a_moment_ago_is_a_point_and_one_outside_says_what_there_is() -> None:
    old = runner.invoke(app, ["diff", "-1h30m", "now"])
    assert old.exit_code == guard.USAGE
    assert "before the ledger's beginning" in old.stderr
    assert "its first message, 1, was stored at" in old.stderr
    far = runner.invoke(app, ["diff", "1", "999999"])
    assert far.exit_code == guard.USAGE
    assert "after the ledger's end; its facts are messages 1 to" in far.stderr
    assert document("diff", "-0s", "now")["same"] is True
