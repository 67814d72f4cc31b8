"""`kvferry top` against a real `kvferry up`, in a real terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.unit.cli.processes import Engines, Up, kvferry, running_up
from tests.unit.cli.support import SPACE
from tests.unit.cli.terminals import ALTERNATE, CURSOR, NORMAL, Terminal

from kvferry.cli import guard


def test_one_frame_is_printed_where_nobody_watches(up: Up) -> None:
    result = kvferry(up.home, "top")
    assert result.returncode == guard.OK, result.stderr
    assert f"space {SPACE}" in result.stdout
    assert "leads, term" in result.stdout
    assert "p0 (prefill)" in result.stdout
    assert "lease lasts" in result.stdout
    assert "\x1b" not in result.stdout


def test_one_frame_is_one_document(up: Up) -> None:
    result = kvferry(up.home, "top", "--json")
    assert result.returncode == guard.OK, result.stderr
    found = json.loads(result.stdout)
    assert found["replicas"][0]["leader"] is True
    (space,) = found["spaces"]
    assert space["space"] == SPACE
    nodes = {one["node"]: one for one in space["nodes"]}
    assert nodes["d0"]["cache"] == {"runs": 1, "blocks": 8}
    assert nodes["p0"]["cache"] == {"runs": 0, "blocks": 0}
    assert nodes["p0"]["keeps"]["lease_ms"] == 30_000
    assert {one["cause"]: one["total"] for one in space["misses"]} == {"nothing_held": 1}
    assert [one["span_s"] for one in space["windows"]] == [10, 60, 300]


def _is_given_back(terminal: Terminal) -> None:
    assert terminal.settings() == terminal.before
    assert terminal.raw.count(ALTERNATE) == terminal.raw.count(NORMAL) == 1
    assert terminal.raw.rindex(CURSOR) > terminal.raw.rindex(ALTERNATE)
    assert "Traceback" not in terminal.raw


def test_keys_pause_and_quit_and_the_terminal_is_given_back(up: Up) -> None:
    with Terminal(up.home, "top", "--interval-s", "0.2") as terminal:
        terminal.until(f"space {SPACE}")
        assert terminal.settings() != terminal.before, "keys come one by one"
        at = terminal.type("p")
        terminal.until("PAUSED", at)
        at = terminal.type("p")
        terminal.until("reused", at)
        at = len(terminal.raw)
        terminal.until("reused", at)
        assert "PAUSED" not in terminal.shown(at)
        terminal.type("q")
        assert terminal.end() == guard.OK
        _is_given_back(terminal)


@pytest.mark.parametrize("how", ["\x03", signal.SIGTERM, signal.SIGHUP, "\x1c"])
def test_a_signal_ends_it_and_the_terminal_is_given_back(up: Up, how: str | signal.Signals) -> None:
    with Terminal(up.home, "top", "--interval-s", "0.2") as terminal:
        terminal.until(f"space {SPACE}")
        if isinstance(how, signal.Signals):
            terminal.signal(how)
        else:
            terminal.type(how)
        assert terminal.end() == guard.OK
        _is_given_back(terminal)


def test_a_ledger_that_goes_and_comes_back_is_followed_on(tmp_path: Path) -> None:
    home = tmp_path / "own"
    with running_up(home, "--silent-after-s", "300") as first:
        port = first.url.rpartition(":")[2]
        with Terminal(home, "top", "--interval-s", "0.2", "--nats", first.url) as terminal:
            terminal.until("no node has joined yet")
            first.end()
            terminal.until("not connected")
            at = len(terminal.raw)
            with running_up(home, "--silent-after-s", "300", "--port", port) as again:
                with Engines(again.url):
                    terminal.until(f"space {SPACE}", at)
                    terminal.until("42.7 %", at)
                    at = len(terminal.raw)
                    terminal.until("leads, term", at)
                    assert "not connected" not in terminal.shown(at)
                terminal.type("q")
                assert terminal.end() == guard.OK
                _is_given_back(terminal)
