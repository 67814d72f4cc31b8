"""Pause, observe and resume without a restart; and the engine's own cache reset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.conftest import Pair, free_again, outlasting, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Recorded, of

from kvferry.core.events import Evicted, PinEnded, Requested, Retained, TransferFailed

pytestmark = pytest.mark.engine
LASTING = 20
"""Tokens of an answer that is held in between."""


@pytest.fixture(autouse=True)
def resumed(pair: Pair) -> Iterator[None]:
    """Whatever a test sets, the next one finds reuse in force."""
    incarnations = [engine.ask("incarnation") for engine in (pair.p0, pair.d0)]
    yield
    policy(pair, "resume", p0="on", d0="on")
    assert [engine.ask("incarnation") for engine in (pair.p0, pair.d0)] == incarnations


def policy(pair: Pair, verb: str, *args: str, **modes: str) -> None:
    """Give an operator's command and wait until the engines heard of it."""
    done = pair.plane.cli(verb, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, mode in modes.items():
        engine = getattr(pair, name)
        engine.until("mode", lambda now, mode=mode: now == mode)


def announced(pair: Pair, request: str) -> Requested:
    """The one ``requested`` event of a request."""

    def events(seen: list[Recorded]) -> list[Requested]:
        return [e for e in of(seen, Requested) if e.request.startswith(request)]

    (found,) = events(pair.plane.wait_for(events, f"what {request} wanted"))
    return found


def handed_over(pair: Pair, name: str, text: list[int], tokens: int = 6) -> Answer:
    """A prompt that p0 computes and d0 answers, with p0's hint."""
    first = pair.p0.run(f"{name}-p", text, tokens=1)
    return pair.d0.run(f"{name}-d", text, tokens=tokens, kvferry={"hint": first.hint})


def retained(pair: Pair, request: str, tier: str) -> Retained:
    def events(seen: list[Recorded]) -> list[Retained]:
        return [r for r in of(seen, Retained, tier=tier) if r.request.startswith(request)]

    return events(pair.plane.wait_for(events, f"what {request} left behind"))[-1]


def wake(*engines: EngineProcess) -> None:
    """An idle engine does nothing before its next step."""
    for engine in engines:
        engine.run(f"wake-{engine.ask('steps')}", prompt(1, 5), tokens=2)


def test_a_paused_space_shares_nothing_until_it_is_resumed(
    pair: Pair, reference: EngineProcess
) -> None:
    text = prompt(80_000, 500)
    expected = reference.run("pause", text, tokens=6).tokens
    free = pair.p0.ask("total_blocks") - 1  # All but the null block: earlier leases end too.
    first = pair.p0.run("pause-p", text, tokens=1)
    offer, lease = retained(pair, "pause-p", "cache"), retained(pair, "pause-p", "hbm")
    assert pair.p0.ask("leases") >= 1
    policy(pair, "pause", p0="paused", d0="paused")
    wake(pair.p0)
    pair.plane.wait_for(
        lambda seen: (
            {offer.offer, lease.offer} <= {e.offer for e in of(seen, Evicted, reason="paused")}
        ),
        "the offer and the lease to be withdrawn",
    )
    assert pair.p0.ask("leases") == 0
    free_again(pair.p0, free)
    answer = pair.d0.run("pause-d", text, tokens=6, kvferry={"hint": first.hint})
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "paused")
    assert answer.hint is None
    assert answer.tokens == expected
    assert announced(pair, "pause-d").miss == "paused"
    assert pair.p0.run("pause-p2", prompt(80_001, 200), tokens=1).hint is None
    assert pair.p0.ask("leases") == 0
    policy(pair, "resume", p0="on", d0="on")
    again = handed_over(pair, "resumed", prompt(80_002, 500))
    assert again.report["pulled"] == 480
    assert again.report["from"] == "p0"


def test_one_paused_node_neither_pulls_nor_serves(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(81_000, 500)
    answer = pair.d0.run("node-d", text, tokens=6)
    retained(pair, "node-d", "cache")
    policy(pair, "pause", "--node", "d0", d0="paused")
    assert pair.p0.ask("mode") == "on"
    expected = reference.run("node", text, tokens=6).tokens
    by_hint = pair.p0.run("node-p", text, tokens=6, kvferry={"hint": answer.hint})
    assert (by_hint.report["pulled"], by_hint.tokens) == (0, expected)
    assert by_hint.report["miss"] in ("paused", "transfer_failed")
    other = prompt(81_001, 500)
    pair.p0.run("node-p2", other, tokens=1)
    missed = pair.d0.run("node-d2", other, tokens=6)
    assert (missed.report["pulled"], missed.report["miss"]) == (0, "paused")
    policy(pair, "resume", "--node", "d0", d0="on")
    assert handed_over(pair, "node-again", prompt(81_002, 500)).report["pulled"] == 480


def test_observing_records_what_would_have_been_done(pair: Pair, reference: EngineProcess) -> None:
    policy(pair, "observe", p0="observe", d0="observe")
    text = prompt(82_000, 500)
    leases = pair.p0.ask("leases")
    first = pair.p0.run("watch-p", text, tokens=1)
    assert pair.p0.ask("leases") <= leases, "nothing is leased"
    answer = pair.d0.run("watch-d", text, tokens=6, kvferry={"hint": first.hint})
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "observe")
    assert answer.tokens == reference.run("watch", text, tokens=6).tokens
    event = announced(pair, "watch-d")
    assert (event.miss, event.source, event.basis) == ("observe", "p0", "hint")
    assert (event.granted, event.wanted, event.transfer) == (15, 15, "")
    retained(pair, "watch-d", "cache")
    longer = text + answer.tokens + prompt(82_001, 90)
    pair.p0.ask("reset")  # So that p0 would have to pull all of it.
    # Nobody waits for a plan that is only observed, so the request has to outlast it.
    event, second = outlasting(pair, pair.p0, "watch-p2", longer, LASTING)
    assert (second.report["pulled"], second.report["local"]) == (0, 0)
    assert second.tokens == reference.run("watch2", longer, tokens=LASTING).tokens
    assert (event.miss, event.source, event.basis) == ("observe", "d0", "plan")
    assert event.granted == 12, "whole samples of the 15 blocks that d0 offers"
    assert event.options == ("d0",)
    assert event.recompute_ms > 0
    found, nothing = outlasting(pair, pair.d0, "watch-none", prompt(82_002, 500), LASTING)
    assert found.miss == "nothing_held"
    assert nothing.report["pulled"] == 0
    explained = pair.plane.cli("explain", event.request)
    assert "only observes, would pull 12 of 18 blocks from d0" in explained.stdout
    assert not pair.p0.ask("open")
    assert not pair.d0.ask("open")


def test_what_was_offered_while_observing_is_shared_once_resumed(
    pair: Pair, reference: EngineProcess
) -> None:
    policy(pair, "observe", p0="observe", d0="observe")
    text = prompt(83_000, 500)
    first = pair.p0.run("later-p", text, tokens=1)
    retained(pair, "later-p", "cache")
    policy(pair, "resume", p0="on", d0="on")
    answer = pair.d0.run("later-d", text, tokens=6, kvferry={"hint": first.hint})
    # The hint of an observing node is not used, but the plan finds the same blocks.
    assert (answer.report["pulled"], answer.report["from"]) == (480, "p0")
    assert announced(pair, "later-d").basis == "plan"
    assert answer.tokens == reference.run("later", text, tokens=6).tokens


def test_a_source_that_observes_is_not_read(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(84_000, 500)
    policy(pair, "observe", "--node", "p0", p0="observe")
    first = pair.p0.run("shy-p", text, tokens=1)
    retained(pair, "shy-p", "cache")
    for name, given in (("hint", {"hint": first.hint}), ("plan", {})):
        answer = pair.d0.run(f"shy-{name}", text, tokens=6, kvferry=given)
        assert answer.report["pulled"] == 0
        assert answer.tokens == reference.run(f"shy-{name}", text, tokens=6).tokens
        pair.d0.ask("reset")
    assert announced(pair, "shy-hint").miss == "observe"
    assert announced(pair, "shy-plan").miss == "nothing_held"


# --- the engine's own cache reset ------------------------------------------------------------


def drained(engine: EngineProcess) -> None:
    """End leases that other tests left behind."""
    engine.ask("reset")
    assert engine.ask("reset") is True


@pytest.mark.parametrize("told", [False, True])
def test_offers_do_not_stand_in_the_way_of_a_reset(
    pair: Pair, reference: EngineProcess, told: bool
) -> None:
    drained(pair.d0)
    text = prompt(85_000 + told, 500)
    answer = pair.d0.run(f"reset{told}-d", text, tokens=6)
    offer = retained(pair, f"reset{told}-d", "cache")
    assert pair.d0.ask("reset", told) is True
    wake(pair.d0)
    pair.plane.wait_for(
        lambda seen: of(seen, Evicted, offer=offer.offer), "the offer to be withdrawn"
    )
    first = pair.p0.run(f"reset{told}-p", text, tokens=6, kvferry={"hint": answer.hint})
    assert first.report["pulled"] == 0
    assert first.tokens == reference.run(f"reset{told}", text, tokens=6).tokens


def test_a_reset_voids_the_pins_that_stand(pair: Pair, reference: EngineProcess) -> None:
    drained(pair.d0)
    text = prompt(86_000, 700)
    answer = pair.d0.run("void-d", text, tokens=6)
    pair.p0.hold(True)
    pair.p0.add("void-p", text, tokens=6, kvferry={"hint": answer.hint})
    pair.d0.until("pins", lambda count: count == 1)
    assert pair.d0.ask("reset") is True
    pair.p0.hold(False)
    first = pair.p0.answer("void-p")
    assert first.report["pulled"] == 0
    assert first.tokens == reference.run("void", text, tokens=6).tokens
    seen = pair.plane.wait_for(
        lambda seen: [f for f in of(seen, TransferFailed) if f.request.startswith("void-p")],
        "the transfer to fail",
    )
    (failed,) = [f for f in of(seen, TransferFailed) if f.request.startswith("void-p")]
    assert (failed.stage, failed.reason) == ("settle", "void")
    pair.plane.wait_for(
        lambda seen: of(seen, PinEnded, transfer=failed.transfer, how="void"), "the pin's end"
    )


def test_a_lease_stands_in_the_way_of_a_reset_until_the_connector_is_told(
    pair: Pair, reference: EngineProcess
) -> None:
    """vLLM resets its cache before it tells the connector, so the first attempt finds the lease."""
    drained(pair.p0)
    text = prompt(87_000, 500)
    first = pair.p0.run("lease-p", text, tokens=1)
    assert pair.p0.ask("leases") == 1
    assert pair.p0.ask("reset", False) is False
    assert pair.p0.ask("leases") == 1, "not told, the connector kept its lease"
    assert pair.p0.ask("reset", True) is False
    assert pair.p0.ask("leases") == 0, "told, it ended the lease, though too late for this attempt"
    assert pair.p0.ask("reset", True) is True
    answer = pair.d0.run("lease-d", text, tokens=6, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 0
    assert answer.tokens == reference.run("lease", text, tokens=6).tokens


def test_pausing_first_lets_a_reset_succeed_at_once(pair: Pair) -> None:
    drained(pair.p0)
    pair.p0.run("calm-p", prompt(88_000, 500), tokens=1)
    assert pair.p0.ask("leases") == 1
    policy(pair, "pause", "--node", "p0", p0="paused")
    wake(pair.p0)
    assert pair.p0.ask("leases") == 0
    assert pair.p0.ask("reset", False) is True


def test_everything_adds_up(pair: Pair) -> None:
    check(pair.plane, (pair.p0, pair.d0))
