"""`kvferry replay`: a node's part, following, and stepping in a real terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess

import pytest
from tests.unit.cli.processes import BOUND_S, COMMAND, Up, environment, kvferry
from tests.unit.cli.running import runner
from tests.unit.cli.support import SPACE, Writer
from tests.unit.cli.terminals import Terminal

from kvferry.cli import guard
from kvferry.cli.main import app
from kvferry.ledger.jetstream import connect


def test_a_nodes_part_has_nothing_of_the_others(up: Up) -> None:
    result = kvferry(up.home, "replay", "--node", "d0", "--json")
    assert result.returncode == guard.OK, result.stderr
    space = json.loads(result.stdout)["spaces"][SPACE]
    assert [one["node"] for one in space["nodes"]] == ["d0"]
    assert {one["node"] for one in space["offers"]} == {"d0"}
    assert [one["transfer"] for one in space["transfers_ended"]] == ["p.1"]
    assert list(space["prefill"]) in ([], ["d0"])
    assert list(space["rates"]) == ["d0>p0/tcp"]
    assert "totals" not in space
    other = kvferry(up.home, "replay", "--node", "p0", "--json")
    assert json.loads(other.stdout)["spaces"][SPACE]["offers"] == []
    text = kvferry(up.home, "replay", "--node", "d0").stdout
    assert "d0" in text
    assert "prompt tokens" not in text


def test_a_node_that_is_not_there_is_code_2_and_near_ones(up: Up) -> None:
    result = kvferry(up.home, "replay", "--node", "d00")
    assert result.returncode == guard.USAGE
    assert "did you mean d0" in result.stderr


@pytest.mark.parametrize("to", ["999999", "-30d"])
def test_a_point_outside_the_ledger_is_told_what_it_covers(up: Up, to: str) -> None:
    result = runner.invoke(app, ["replay", "--to", to, "--nats", up.url])
    assert result.exit_code == guard.USAGE
    assert "the ledger's" in result.stderr
    assert "message" in result.stderr


def test_stepping_needs_a_terminal_and_names_the_other_way(up: Up) -> None:
    result = runner.invoke(app, ["replay", "--step", "--nats", up.url])
    assert result.exit_code == guard.USAGE
    assert "--to SEQ" in result.stderr
    assert result.stdout == ""


def test_stepping_goes_back_and_forward_by_keys(up: Up) -> None:
    listed = kvferry(up.home, "events", "--kind", "transferred", "--json").stdout.splitlines()
    seq = json.loads(listed[0])["seq"]
    with Terminal(up.home, "replay", "--to", str(seq), "--step") as terminal:
        terminal.until("n next, b back, q quit")
        terminal.until("pulled tokens from 0 to 256 (+256)")
        terminal.until("  = 2 of 2 nodes joined")
        assert terminal.settings() != terminal.before
        at = terminal.type("b")
        terminal.until("  = ", at)
        assert "pulled tokens" not in terminal.shown(at)
        at = terminal.type("n")
        terminal.until("pulled tokens from 0 to 256 (+256)", at)
        at = terminal.type("b" * (seq + 1))
        terminal.until("the ledger begins here", at)
        assert "before message 1" in terminal.shown(at)
        at = terminal.type("?")
        terminal.until("n next", at)
        terminal.type("q")
        assert terminal.end() == guard.OK
        assert terminal.settings() == terminal.before


@pytest.mark.parametrize("how", ["\x03", signal.SIGTERM])
def test_a_signal_ends_stepping_and_gives_the_terminal_back(
    up: Up, how: str | signal.Signals
) -> None:
    with Terminal(up.home, "replay", "--step") as terminal:
        terminal.until("n next, b back, q quit")
        if isinstance(how, signal.Signals):
            terminal.signal(how)
        else:
            terminal.type(how)
        assert terminal.end() == guard.OK
        assert terminal.settings() == terminal.before
        assert "Traceback" not in terminal.raw


async def _join(url: str, node: str) -> None:
    ledger = await connect(url, name="test")
    try:
        await Writer(ledger, node, space="other-000000000000").join()
    finally:
        await ledger.close()


def test_following_tells_what_changes_until_it_is_stopped(up: Up) -> None:
    process = subprocess.Popen(
        [*COMMAND, "replay", "--follow"],
        env=environment(up.home, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "of 2 nodes joined" in process.stdout.readline()
        asyncio.run(_join(up.url, "n7"))
        lines = []
        while not any("+ node n7: joined" in one for one in lines):
            line = process.stdout.readline()
            assert line, lines
            lines.append(line)
        assert "3 of 3 nodes joined" in "".join(lines)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=BOUND_S)
        assert process.returncode == guard.OK, rest + errors
        assert errors == ""
    finally:
        process.kill()
        process.communicate(timeout=BOUND_S)
