"""Recorded decisions are decided again: the same ones, and those that were not taken so."""

from __future__ import annotations

import pytest
from tests.unit.daemon.support import BLOCK
from tests.unit.whatif.ledgers import FIRST, Ledger

from kvferry.errors import ConfigError
from kvferry.replay.whatif.policy import Policy


async def shared() -> tuple[Ledger, int]:
    """d0 has a conversation, p0 none; the position at which that is known."""
    ledger = Ledger()
    await ledger.join("p0", blocks=500)
    await ledger.join("d0", blocks=500)
    return ledger, await ledger.turn("d0", "talk", FIRST)


@pytest.mark.parametrize(
    ("talk", "asked", "same"),
    [
        ("talk", {"source": "d0", "pulled": 16}, True),
        ("talk", {"source": "d1", "pulled": 16}, False),
        ("talk", {}, False),
        ("other", {}, True),
        ("other", {"source": "d0", "pulled": 16}, False),
        ("other", {"basis": "told"}, True),
        ("talk", {"basis": "told"}, False),
        ("talk", {"source": "d0", "pulled": 16, "basis": "hint", "options": ()}, True),
    ],
)
async def test_only_what_would_be_decided_so_counts_as_reproduced(
    talk: str, asked: dict[str, object], same: bool
) -> None:
    ledger, position = await shared()
    await ledger.turn("p0", talk, FIRST, position=position, **asked)  # type: ignore[arg-type]
    report = await ledger.ask(force=False)
    assert report.decisions == 1, report.not_decided
    assert (report.reproduced, report.enough) == ((1.0, True) if same else (0.0, False))
    assert (report.computed_tokens is None) is not same
    if not same:
        (kind,) = report.kinds
        assert kind.why
        assert kind.examples[0].node == "p0"


async def talks_on_d0(said: str) -> tuple[Ledger, int]:
    """A ledger whose leader said how it weighs, with p0's own requests and d0's; its position."""
    ledger = Ledger()
    await ledger.leads(said)
    for node in ("p0", "d0"):
        await ledger.join(node, blocks=2_000)
    position = 0
    for number in range(8):
        await ledger.turn("p0", f"own-{number}", FIRST + number)
        position = await ledger.turn("d0", f"talk-{number}", FIRST)
    return ledger, position


@pytest.mark.parametrize(
    ("said", "weighed", "same"),
    [
        ("off", True, True),
        ("learned", True, False),
        ("learned", False, False),
        ("", True, False),
        ("", False, True),
    ],
)
async def test_costs_are_weighed_as_the_ledger_says(said: str, weighed: bool, same: bool) -> None:
    """p0 pulls over a link that takes a thousand times longer than computing does."""
    ledger, position = await talks_on_d0(said)
    for number in range(8):
        given = {"source": "d0", "pulled": FIRST, "read_ms": 1e5 + number, "position": position}
        position = await ledger.turn("p0", f"talk-{number}", FIRST, **given)  # type: ignore[arg-type]
    report = await ledger.ask(Policy(weighed=weighed), force=False)
    assert report.enough is same, report.kinds


@pytest.mark.parametrize("said", ["learned", "off"])
@pytest.mark.parametrize("floor_ms", [1.0, 1e5])
@pytest.mark.parametrize("moved", [True, False])
async def test_what_a_node_lacked_of_a_hint_is_weighed_as_the_node_weighed_it(
    said: str, floor_ms: float, moved: bool
) -> None:
    """p0 has all but two blocks of what d0 holds, and moving two computes sooner than 1 s."""
    ledger, position = await talks_on_d0(said)
    for number in range(4):  # What they teach of the link was asked for by nobody's choice.
        given = {"source": "d0", "pulled": FIRST, "read_ms": floor_ms + number, "basis": "hint"}
        position = await ledger.turn("p0", f"talk-{number}", FIRST, **given)  # type: ignore[arg-type]
    asked: dict[str, object] = {
        "source": "d0",
        "basis": "hint",
        "options": (),
        "local": FIRST - 2,
        "weighed_from": (FIRST - 2) * BLOCK,
        "granted": FIRST,
        "position": position,
    }
    asked |= {"pulled": 2} if moved else {"miss": "too_dear"}
    await ledger.turn("p0", "talk-7", FIRST, **asked)  # type: ignore[arg-type]
    report = await ledger.ask(force=False)
    assert report.decisions == 1, report.not_decided
    dear = said == "learned" and floor_ms > 1.0
    assert report.enough is (moved is not dear), report.kinds


async def test_a_trial_of_what_was_too_dear_is_no_decision() -> None:
    ledger, position = await shared()
    asked: dict[str, object] = {"weighed_from": 8 * BLOCK, "tried": True, "position": position}
    await ledger.turn("p0", "talk", FIRST, source="d0", pulled=8, local=8, basis="hint", **asked)
    report = await ledger.ask(force=False)
    assert (report.decisions, report.not_decided["hint"]) == (0, 1)


async def test_a_decision_is_taken_where_it_was_taken_not_where_it_is_told() -> None:
    """By the time that p0 tells of its miss, d0 has offered the conversation."""
    for late, same in ((False, True), (True, False)):
        ledger = Ledger()
        before = await ledger.join("p0", blocks=500)
        await ledger.join("d0", blocks=500)
        after = await ledger.turn("d0", "talk", FIRST)
        await ledger.turn("p0", "talk", FIRST, position=after if late else before)
        report = await ledger.ask(force=False)
        assert (report.decisions, report.enough) == (1, same)


async def test_circumstances_are_no_decisions() -> None:
    ledger, _ = await shared()
    for miss in ("no_coordinator", "plan_late", "reuse_off", "paused"):
        await ledger.turn("p0", "talk", FIRST, miss=miss)
    report = await ledger.ask(force=False)
    assert (report.decisions, report.enough) == (0, True)
    assert report.not_decided["plan_late"] == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_request_that_leaves_no_offer_is_known_by_its_last_sample(named: bool) -> None:
    """As one that repeats another to its last token does."""
    ledger, position = await shared()
    asked: dict[str, object] = {} if named else {"tail": b""}
    await ledger.turn(
        "p0", "talk", FIRST, source="d0", pulled=16, leaves=False, position=position, **asked
    )
    report = await ledger.ask(force=False)
    assert (report.decisions, report.enough) == (1, named)
    if not named:
        assert "left no offer" in next(iter(report.kinds[0].why))


async def test_an_empty_ledger_and_ranges_outside_are_told() -> None:
    ledger = Ledger()
    with pytest.raises(ConfigError, match="empty"):
        await ledger.ask()
    ledger, _ = await shared()
    with pytest.raises(ConfigError, match="messages 1 to 4"):
        await ledger.ask(first=50)
    with pytest.raises(ConfigError, match="messages 1 to 4"):
        await ledger.ask(last=0)


async def test_unknown_nodes_suggest_near_ones() -> None:
    ledger, _ = await shared()
    with pytest.raises(ConfigError, match="no node 'd00'; did you mean d0"):
        await ledger.ask(Policy(links={"d00>p0": 1e9}))


async def test_a_range_begins_with_what_stood_before_it() -> None:
    ledger, position = await shared()
    first = position + 1
    await ledger.turn("p0", "talk", FIRST, position=position, source="d0", pulled=16)
    report = await ledger.ask(first=first, force=False)
    assert (report.first, report.decisions) == (first, 1)
    assert report.not_decided == {}
