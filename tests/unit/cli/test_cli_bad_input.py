"""What commands answer to ids, ranges and files that are not there, over the recorded chaos run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.commands import RECORDING
from tests.unit.cli.running import document, run, runner

from kvferry.cli import guard
from kvferry.cli.main import app

FILE = ("--file", str(RECORDING))
COVERS = r"its facts are messages 1 to 84, stored from 2026-11-30T"
BEFORE = ("--from", "2020-01-01T00:00:00Z", "--to", "2020-01-02T00:00:00Z")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFERRY_NATS", raising=False)


def refused(*arguments: str, code: int = guard.USAGE) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_range_outside_the_ledger_is_told_what_it_covers(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = [
        ("audit", *BEFORE), ("whatif", *BEFORE), ("audit", "--from", "900"),
        ("export", str(tmp_path / "part.kvf"), *BEFORE), ("replay", "--to", "900"),
        ("diff", "5", "900"),
    ]  # fmt: skip
    for one in asked:
        said = refused(*one, *FILE)
        assert COVERS in said, one
    said = runner.invoke(app, ["events", *BEFORE, *FILE]).stderr
    assert "no event matches; KVF holds messages 1 to 84, stored from 2026-11-30T" in said
    assert "ends, at message 40, before it begins, at 50" in refused(
        "audit", "--from", "50", "--to", "40", *FILE
    )
    assert "lies before the ledger's beginning" in refused("replay", "--to", BEFORE[1], *FILE)


def test_a_moment_after_a_files_end_shows_the_end_and_says_so() -> None:
    later = runner.invoke(app, ["replay", "--to", "2090-01-01T00:00:00Z", "--digest", *FILE])
    assert later.exit_code == guard.OK
    assert "lies after the last message, 84, of 2026-11-30T" in later.stderr
    end = runner.invoke(app, ["replay", "--to", "84", "--digest", *FILE])
    assert (end.stdout, end.stderr) == (later.stdout, ""), "the control"


def test_an_id_that_is_a_nodes_or_none_is_told() -> None:
    said = refused("explain", "d0", *FILE, code=guard.TROUBLE)
    assert "but a node of that name: `kvferry replay --node d0` shows it" in said
    assert document("explain", "d0", *FILE, code=guard.TROUBLE)["is_node"] is True
    other = refused("explain", "turn-9", *FILE, code=guard.TROUBLE)
    assert "known requests: turn-4, turn-3, turn-2, turn-1" in other
    assert "a node of that name" not in other
    assert "name a request, session, transfer or block" in refused("explain", " ", *FILE)


def test_files_are_no_points() -> None:
    said = refused("diff", str(RECORDING), str(RECORDING))
    assert "`kvferry diff --file ONE --other TWO` compares two files" in said
    assert "the same: " in run("diff", *FILE, "--other", str(RECORDING))


def test_a_file_whose_facts_cannot_be_read_says_where_it_is_damaged(tmp_path: Path) -> None:
    whole = RECORDING.read_bytes()
    cut, hurt, junk = tmp_path / "cut.kvf", tmp_path / "hurt.kvf", tmp_path / "junk.kvf"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    said = refused("audit", "--file", str(cut))
    assert "a chunk with messages 1 to 84 is cut off" in said
    assert f"{cut} has no facts that can be read" in said
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 0xFF
    hurt.write_bytes(changed)
    result = runner.invoke(app, ["audit", "--file", str(hurt)])
    assert result.exit_code == guard.TROUBLE
    assert "the chunk's checksum does not match; messages 1 to 84 are lost" in result.stderr
    assert "BROKEN readable at KVF 1" in result.stdout
    assert "\n1 violation\n" in result.stdout
    junk.write_bytes(b"no such file" * 100)
    for command in ("audit", "advise", "whatif", "replay", "top", "events"):
        assert "is not a file that `kvferry export` wrote" in refused(command, "--file", str(junk))
