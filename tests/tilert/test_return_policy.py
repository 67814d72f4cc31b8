"""A node that keeps follows what an operator says of it, by the commands and a real ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.e2e.plane import of
from tests.tilert.return_bench import SLOTS, Bench
from tests.tilert.returning import Turn, facts_of

from kvferry.core.events import Evicted

RETAIN = {"retain_ms": 600_000}


def told(bench: Bench, *arguments: str) -> str:
    """Say something about the node; what the command answers."""
    command, *rest = arguments
    space = facts_of(bench.prefill).space
    said = bench.plane.cli(command, *rest, "--node", bench.name, "--space", space)
    assert said.returncode == 0, said
    return said.stdout


def gone(bench: Bench, turn: Turn, keep: int = 0) -> str:
    """Why no more than ``keep`` blocks of what was kept of a turn are left; waits for it."""
    offer = bench.retained(turn).offer

    def found(seen: list[object]) -> list[Evicted]:
        return [e for e in of(seen, Evicted, offer=offer) if e.keep <= keep]

    return found(bench.plane.wait_for(found, f"{turn.rid} gave way", 60.0))[0].reason


@pytest.fixture
def lowered(bench: Bench) -> Iterator[Bench]:
    """A node that joined; what was set for it is taken back in the end."""
    assert bench.kept(bench.turn(200)) == 3
    yield bench
    before = bench.node.tail(10_000).count("keeps by what")
    told(bench, "policy", "--host-budget", "default", "--retain-max", "default")
    bench.node.wait_for(
        lambda: bench.node.tail(10_000).count("keeps by what") > before, "it hears of it"
    )


def test_while_paused_nothing_is_kept_and_what_was_goes(bench: Bench) -> None:
    turn = bench.turn(80)
    assert bench.kept(turn) == 3
    told(bench, "pause")
    offer = bench.retained(turn).offer
    seen = bench.plane.wait_for(lambda found: of(found, Evicted, offer=offer), "it was given up")
    assert of(seen, Evicted, offer=offer)[0].reason == "paused"
    assert bench.not_kept(bench.turn(81)) == "paused"
    told(bench, "resume")
    deadline = time.monotonic() + 60.0
    while True:
        again = bench.turn(int(time.monotonic() * 1000))
        again.run(bench.node)
        if bench.ended(again).kept_blocks:
            break
        assert time.monotonic() < deadline


def test_no_more_of_the_tier_is_in_use_than_is_allowed(lowered: Bench) -> None:
    bench = lowered
    older, newer = bench.turn(201), bench.turn(202)
    assert (bench.kept(older), bench.kept(newer)) == (3, 3)
    assert "3 blocks of host tier" in told(bench, "policy", "--host-budget", "50%")
    assert gone(bench, older) == "policy"
    assert bench.pull(newer).count == 3
    long = bench.turn(203, prompt=190, answer=80)
    assert bench.not_kept(long) == "no_room"
    assert f"4 blocks, the host tier {SLOTS}; of which 3 may be in use" in bench.node.tail()
    other = bench.turn(204)
    assert bench.kept(other) == 3
    assert gone(bench, newer) == "pressure"
    shown = told(bench, "policy")
    assert bench.name in shown
    assert "42.9 % (3 blocks) *" in shown, shown


def test_what_is_being_read_goes_when_it_has_been(lowered: Bench) -> None:
    bench = lowered
    turn = bench.turn(210)
    assert bench.kept(turn) == 3
    joined = bench.joined()
    transfer = bench.peer.pin(joined, turn.chain)
    beside = bench.turn(211)
    assert bench.kept(beside) == 3
    told(bench, "policy", "--host-budget", "0")
    assert gone(bench, beside) == "policy"
    assert bench.peer.done(joined, transfer)
    assert gone(bench, turn) == "policy"
    assert bench.not_kept(bench.turn(212)) == "no_room"


def test_a_client_may_ask_for_its_blocks_as_long_as_an_operator_lets_it(lowered: Bench) -> None:
    bench = lowered
    asked = bench.turn(220, session="asked", **RETAIN)
    plain, beside = bench.turn(221), bench.turn(222)
    for turn in (asked, plain, beside):
        assert bench.kept(turn) == 3
    assert gone(bench, plain, keep=2) == "pressure"
    assert bench.pull(asked).count == 3
    heard = "retain_max_ms=0"
    before = bench.node.tail(10_000).count(heard)
    told(bench, "policy", "--retain-max", "0")
    bench.node.wait_for(lambda: bench.node.tail(10_000).count(heard) > before, "it hears of it")
    in_vain = bench.turn(223, **RETAIN)
    for turn in (in_vain, bench.turn(224)):
        assert bench.kept(turn) == 3
    assert gone(bench, in_vain, keep=2) == "pressure"
    assert bench.pull(asked).count == 3  # What was granted before stays granted.
    last = Turn(bench.prefill, asked.prompt, asked.answer, session="asked", end=True)
    assert bench.not_kept(last) == "session_end"
