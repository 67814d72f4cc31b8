"""Advice from a ledger: what engines measured, and what they would have done."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.advise.told import BLOCK, BLOCK_BYTES, Told, computed, pull, pulled
from tests.unit.cli.support import SPACE, converse

from kvferry.core.events import (
    Evicted,
    LinkProbed,
    NodeLeft,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.ledger import advise_ledger
from kvferry.replay.advise.report import DO_NOT_ENABLE, ENABLE
from kvferry.replay.advise.turns import TurnRecord, Turns


def test_pulls_that_pay() -> None:
    told = Told()
    for number in range(10):
        told.at(number * 60, "p", computed(f"c{number}", f"s{number}"))
        told.at(number * 60 + 20, "p", *pulled(str(number)))
    told.at(700, "p", LinkProbed(peer="d", backend="tcp", gb_per_s=2.0, floor_ms=1.0, why="x"))
    report = told.report()
    assert (report.requests, report.sessions) == (20, 10)
    assert (report.prompt_tokens, report.reused_tokens) == (20_000, 8_000)
    # The second prompt repeats the first and its answer; all but its last token.
    assert report.repeated_tokens == 10 * 999
    assert report.hits == {"pulled": 10}
    assert report.misses == {"nothing_held": 10}
    assert [(row.turn, row.reused_tokens) for row in report.shares] == [("1", 0), ("2", 8_000)]
    # The second turn ended 20 s after the first, and took half a second.
    assert report.gaps_s is not None
    assert (report.gaps_s.count, report.gaps_s.p50) == (10, 19.5)
    # Computed 10 · (0.5 + 0.1) s; spared 10 · 0.4 s in 10 · 0.05 s.
    assert report.prefill_s == pytest.approx(6 + 4)
    assert report.saved_s == pytest.approx(4 - 0.5)
    assert report.bytes_per_turn == 10 * 50 * BLOCK_BYTES / 20
    (link,) = report.links
    assert (link.source, link.target, link.moves) == ("d", "p", 10)
    assert (link.peak_bytes_s, link.rate_bytes_s, link.measured) == (8_000, 2e9, "probe")
    # Without reuse the pulled turns had taken the 400 ms that they spared, less the 50 of pulling.
    assert [(row.how, row.seconds.count, row.seconds.p50) for row in report.ttft] == [
        ("without", 20, 0.5),
        ("with reuse", 20, 0.5),
        ("computed", 10, 0.5),
        ("pulled", 10, 0.15),
    ]
    assert report.turn_bytes is not None
    assert (report.turn_bytes.count, report.turn_bytes.p99) == (10, 50 * BLOCK_BYTES)
    assert report.ttft_measured
    assert report.verdict.word == ENABLE
    assert report.verdict.reasons[0].text.startswith("reuse spared 35.0% of prefill time")


def test_a_fleet_whose_turns_never_repeat_is_told_not_to_enable_it() -> None:
    told = Told()
    for number in range(20):
        told.at(number, "p", computed(f"c{number}", f"s{number}"))
    report = told.report()
    assert report.verdict.word == DO_NOT_ENABLE
    assert report.gaps_s is None
    assert report.saved_s == 0


def test_transfers_that_fail_are_a_reason_against() -> None:
    told = Told()
    for number in range(20):
        told.at(number, "p", *pulled(str(number)))
    for number in range(2):
        name = f"f{number}"
        told.at(
            30, "p", pull(name),
            TransferFailed(
                transfer=name, request=name, source="d", stage="read", reason="deadline",
                total_ms=200.0,
            ),
            computed(name, miss="transfer_failed"),
        )  # fmt: skip
    report = told.report()
    assert report.saved_s == pytest.approx(20 * 0.35 - 2 * 0.2)
    assert report.misses == {"transfer_failed": 2}
    assert report.verdict.word == DO_NOT_ENABLE
    assert "2 of 22 transfers failed (9.1%)" in report.verdict.reasons[0].text


def test_observe_mode_tells_what_would_have_been_pulled() -> None:
    told = Told()
    for number in range(20):
        asked = Requested(
            request=f"o{number}", source="d", wanted=62, granted=50, predicted_ms=40.0,
            recompute_ms=400.0, miss="observe",
        )  # fmt: skip
        told.at(number * 20, "p", asked, computed(f"o{number}", miss="observe"))
    report = told.report()
    assert report.repeated_tokens == 20 * 50 * BLOCK
    assert report.reused_tokens == 0
    assert report.saved_s == pytest.approx(20 * 0.36)
    assert report.links[0].bytes == 20 * 50 * BLOCK_BYTES
    assert report.turn_bytes is not None
    assert (report.turn_bytes.count, report.turn_bytes.p50) == (20, 50 * BLOCK_BYTES)
    times = {row.how: row.seconds.p50 for row in report.ttft}
    assert times == pytest.approx({"computed": 0.5, "without": 0.5, "with reuse": 0.5 - 0.36})
    assert report.verdict.word == ENABLE
    assert "would spare 72.0%" in report.verdict.reasons[0].text
    assert any("only observed" in text for text in report.assumptions)


def test_a_turn_stands_in_one_row_of_hits_and_misses() -> None:
    """Also where the own cache had most of a prompt and the pull of the rest failed."""
    told = Told()
    own = msgspec.structs.replace(computed("own", miss="nothing_held"), local_tokens=900)
    told.at(1, "p", own)
    told.at(
        2, "p", pull("f"),
        TransferFailed(transfer="f", request="f", source="d", stage="read", reason="deadline"),
        msgspec.structs.replace(computed("f", miss="transfer_failed"), local_tokens=900),
    )  # fmt: skip
    told.at(3, "p", *pulled("ok"))
    told.at(4, "p", msgspec.structs.replace(computed("some"), local_tokens=100))
    report = told.report()
    assert report.hits == {
        "own cache": 1, "own cache, and the pull of the rest failed": 1, "pulled": 1,
    }  # fmt: skip
    assert report.misses == {"nothing_held": 1}
    assert sum(report.hits.values()) + sum(report.misses.values()) == report.requests


def test_pulls_by_hint_have_no_prediction_and_count_with_the_mean_rate() -> None:
    told = Told()
    for number in range(10):
        told.at(number, "p", computed(f"c{number}"))
        _, arrived, ended = pulled(str(number))
        asked = Requested(request=str(number), transfer=str(number), source="d", granted=50)
        told.at(number, "p", asked, arrived, ended)
    report = told.report()
    # 10 · 1,000 tokens in 5 s and 10 · 200 in 1 s: 0.5 ms each. Spared are 10 · 800 in 0.5 s.
    assert report.prefill_s == pytest.approx(6 + 4)
    assert report.saved_s == pytest.approx(4 - 0.5)


def test_pulls_that_take_longer_than_computing_are_told_not_to_be_enabled() -> None:
    told = Told()
    for number in range(20):
        asked, arrived, ended = pulled(str(number))
        assert isinstance(arrived, Transferred)
        slow = msgspec.structs.replace(arrived, total_ms=1_400.0)
        told.at(number, "p", asked, slow, ended)
    report = told.report()
    assert report.saved_s == pytest.approx(-20)
    assert report.verdict.word == DO_NOT_ENABLE
    assert "took 20 s more for moving" in report.verdict.reasons[0].text


def test_offers_that_end_before_their_session_comes_back() -> None:
    told = Told()
    offers = [
        Retained(
            offer=f"d.{number}", rev=1, tier="cache", count=9, tail=b"t" * 32, hashes=b"",
            session=f"s{number}",
        )
        for number in range(4)
    ]  # fmt: skip
    told.at(0, "d", *offers)
    told.at(30, "d", Evicted(offer="d.0", rev=2, keep=0, reason="reuse", count=9))
    told.at(30, "d", Evicted(offer="d.1", rev=2, keep=3, reason="reuse", count=6))  # Some stays.
    told.at(40, "d", Evicted(offer="d.2", rev=2, keep=0, reason="superseded"))
    for number in range(3):
        told.at(50, "p", Requested(request=f"r{number}", session=f"s{number}", miss="x"))
    told.at(60, "lead", NodeLeft(term=1, node="d", incarnation="i", epoch=1))
    told.at(65, "p", Requested(request="r3", session="s3", miss="x"))
    kept = {row.reason: row for row in told.report().kept}
    assert set(kept) == {"reuse", "node_left"}
    assert (kept["reuse"].offers, kept["reuse"].kept_s.p50) == (1, 30)
    assert (kept["reuse"].before_next_use, kept["reuse"].too_early_s) == (1, 20)
    assert (kept["node_left"].offers, kept["node_left"].kept_s.p50) == (2, 60)
    assert (kept["node_left"].before_next_use, kept["node_left"].too_early_s) == (1, 5)


def test_a_turn_on_two_engines_is_one_and_the_way_forward_spares_nothing() -> None:
    told = Told()
    told.at(1, "p", computed("turn-p", "s"))
    forward = RequestEnded(
        request="turn-d", session="s", prompt_tokens=1_000, pulled_tokens=992, computed_tokens=8,
        output_tokens=20, ttft_ms=60.0, prefill_ms=5.0,
    )  # fmt: skip
    moved = Transferred(
        transfer="t", request="turn-d", source="p", start=0, count=62, tokens=992, bytes=100,
        backend="tcp", total_ms=10.0,
    )  # fmt: skip
    asked = Requested(request="turn-d", transfer="t", source="p", recompute_ms=400.0)
    told.at(2, "d", asked, moved, forward)
    turn = TurnEnded(
        request="turn", session="s", prefill_request="turn-p", decode_request="turn-d",
        ttft_ms=620.0,
    )  # fmt: skip
    told.at(2, "r", turn, space=ROUTER_SPACE)
    report = told.report()
    assert (report.requests, report.sessions) == (1, 1)
    assert report.reused_tokens == 0
    assert report.saved_s == 0
    assert report.prefill_s == 0.5
    assert {row.how: row.seconds.p50 for row in report.ttft} == dict.fromkeys(
        ("without", "with reuse", "computed"), 0.62
    )
    assert report.links[0].bytes == 100, "it crosses the link all the same"


def test_where_a_prompt_diverged_ends_what_repeats() -> None:
    told = Told()
    told.at(1, "p", computed("a", "s"))
    told.at(5, "p", computed("b", "s", miss="diverged@320"))
    told.at(9, "p", computed("c", "s"))
    report = told.report()
    # The last repeats its turn before: 1,000 tokens and an answer of 20, all but its last token.
    assert [row.repeated_tokens for row in report.shares] == [0, 320, 999]
    assert report.misses == {"nothing_held": 2, "diverged": 1}


async def test_a_log_is_read_to_its_end() -> None:
    log = MemoryLog()
    await converse(log)
    report = await advise_ledger(log, Costs(), "a log")
    assert (report.requests, report.sessions) == (3, 2)
    assert (report.reused_tokens, report.repeated_tokens) == (256, 256)
    assert report.hits == {"pulled": 1}
    assert report.saved_s == pytest.approx(0.0855)
    empty = await advise_ledger(MemoryLog(), Costs(), "nothing")
    assert (empty.requests, empty.verdict.word) == (0, "too_little_data")


def test_turns_are_held_within_a_bound_and_nothing_of_them_stays() -> None:
    given: list[TurnRecord] = []
    turns = Turns(given.append, open_max=3)
    for number in range(50):
        turns.asked(SPACE, "p", Requested(request=f"a{number}", miss="x"))
        turns.routed(TurnEnded(request=f"t{number}", prefill_request=f"r{number}"))
        if number % 2:
            turns.ended(SPACE, "p", computed(f"r{number}"), number)
    turns.close()
    assert [turn.parts[0].ended.request for turn in given] == [f"r{n}" for n in range(1, 50, 2)]
    sizes = [len(one) for one in vars(turns).values() if isinstance(one, dict)]
    assert len(sizes) == 3
    assert max(sizes) <= 3
