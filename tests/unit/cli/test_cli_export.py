"""Exports, imports, audits and traces of a real `kvferry up` with a small conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.processes import Up, running_up
from tests.unit.cli.running import document, run, runner
from tests.unit.cli.support import REQUEST

from kvferry.cli import guard
from kvferry.cli.main import app


@pytest.fixture(autouse=True)
def ledger_url(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)


def test_an_exported_file_tells_what_the_ledger_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, part = str(tmp_path / "a.kvf"), str(tmp_path / "part.kvf")
    done = document("export", file)
    assert done["messages"]["KVF"] >= 5
    assert done["messages"]["KVF_BLOCKS"] == 1
    last = done["ranges"]["KVF"]["last"]
    assert "sequences" in run("export", part, "--from", "3", "--to", str(last), "--facts-only")
    again = runner.invoke(app, ["export", file])
    assert again.exit_code == guard.USAGE
    assert "--force" in again.stderr
    live = document("explain", REQUEST)
    digest = run("replay", "--digest", "--to", str(last))
    # From here on there is no ledger.
    monkeypatch.setenv("KVFERRY_NATS", "nats://127.0.0.1:9")
    assert document("explain", REQUEST, "--file", file) == live
    assert run("replay", "--digest", "--file", file) == digest
    assert run("replay", "--digest", "--file", part) == digest
    assert run("replay", "--digest", "--file", file, "--to", "3") != digest
    told = [json.loads(line) for line in run("events", "--file", file, "--json").splitlines()]
    assert any(one["request"] == REQUEST for one in (event["body"] for event in told)
               if "request" in one)  # fmt: skip


def test_a_trace_is_drawn_of_the_ledger_or_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    file, live, again = (tmp_path / name for name in ("a.kvf", "live", "again"))
    last = str(document("export", str(file))["ranges"]["KVF"]["last"])
    assert document("export", str(live), "--perfetto", "--to", last)["packets"] > 10
    assert "ui.perfetto.dev" in run("export", str(again), "--perfetto", "--file", str(file))
    assert live.read_bytes() == again.read_bytes()
    both = runner.invoke(app, ["export", str(tmp_path / "x"), "--perfetto", "--strip"])
    assert both.exit_code == guard.USAGE
    assert "--strip first" in both.stderr


def test_an_audit_is_clean_and_a_damaged_file_is_not(tmp_path: Path) -> None:
    assert "all invariants hold" in run("audit")
    assert document("audit")["violations"] == []
    file = tmp_path / "holed.kvf"
    run("export", str(file))
    assert document("audit", "--file", str(file))["violations"] == []
    data = file.read_bytes()
    at = data.index(b"KVFC", 4) + 60  # within the first chunk after the head: the facts
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    found = runner.invoke(app, ["audit", "--file", str(file), "--json"])
    assert found.exit_code == guard.TROUBLE
    told = json.loads(found.stdout)
    assert told["events"] == 1, "nothing but the detail is left"
    assert [one["invariant"] for one in told["violations"]] == ["readable"]
    assert "are gone" in told["violations"][0]["story"]
    assert "checksum" in found.stderr


def test_nodes_that_do_not_answer_an_audit_are_named(tmp_path: Path) -> None:
    """The nodes of this ledger are written by the test: nobody listens for them."""
    told = document("audit", "--live")
    assert told["violations"] == []
    assert told["live"]["agreed"] == []
    assert {"p0", "d0"} <= set(told["live"]["silent"])
    assert "p0 is silent: it runs an older kvferry, hangs, has ended" in run("audit", "--live")
    assert document("audit")["live"] is None
    refused = runner.invoke(app, ["audit", "--live", "--file", str(tmp_path / "a.kvf")])
    assert refused.exit_code == guard.USAGE
    assert "--live asks nodes and --file reads a file" in refused.stderr


def test_a_damaged_file_says_where_and_tells_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "cut.kvf"
    run("export", str(file))
    size = file.stat().st_size
    with file.open("r+b") as cut:
        cut.truncate(size - 3)
    result = runner.invoke(app, ["explain", REQUEST, "--file", str(file)])
    assert result.exit_code == guard.OK
    assert "256" in result.stdout
    assert "cut off" in result.stderr
    assert f"byte {size - 3}" in result.stderr


def test_a_file_is_imported_into_a_store_of_its_own(tmp_path: Path) -> None:
    file, store = str(tmp_path / "b.kvf"), tmp_path / "store"
    exported = document("export", file)["messages"]
    assert document("import", file, "--store", str(store))["messages"] == exported
    full = runner.invoke(app, ["import", file])
    assert full.exit_code == guard.UNREACHABLE
    assert "import into an empty one" in full.stderr
    taken = runner.invoke(app, ["import", file, "--store", str(store)])
    assert taken.exit_code == guard.USAGE
    assert "is not empty" in taken.stderr
    with running_up(tmp_path / "home", "--store", str(store)) as served:
        story = document("explain", REQUEST, "--nats", served.url)
    assert story["transfers"] == ["p.1"]
