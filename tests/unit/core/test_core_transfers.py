"""Transfers: one outcome, the first; learned rates; both sides' records of a pin."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core.support import requested, started

from kvferry.core import evolve_transfers
from kvferry.core import state as bounds
from kvferry.core.events import (
    Inventory,
    LinkProbed,
    OpenTransfer,
    PinEnded,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
)
from kvferry.core.invariants import violations


def done(transfer: str, size: int = 40_960, read_ms: float = 4.0) -> Transferred:
    return Transferred(
        transfer=transfer,
        request=f"r-{transfer}",
        source="d0",
        start=0,
        count=10,
        tokens=160,
        bytes=size,
        backend="tcp",
        read_ms=read_ms,
        total_ms=read_ms + 1,
    )


def failed(transfer: str, reason: str = "void") -> TransferFailed:
    return TransferFailed(
        transfer=transfer, request="r", source="d0", stage="settle", reason=reason, total_ms=3.0
    )


def pin(transfer: str, how: str = "intact", granted: int = 10) -> PinEnded:
    return PinEnded(transfer=transfer, target="p0", granted=granted, how=how)


def test_a_transfer_from_request_to_end() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(requested("t"))
    opened = ledger.space.transfers["t"]
    assert (opened.phase, opened.target, opened.source, opened.granted) == ("open", "p0", "d0", 10)
    p0.write(done("t"))
    assert (opened.phase, opened.bytes, opened.tokens) == ("done", 40_960, 160)
    assert opened.ended_ms > opened.requested_ms > 0
    totals = ledger.space.totals
    assert (totals.transfers_opened, totals.transfers_done, totals.bytes_moved) == (1, 1, 40_960)


def test_the_first_outcome_wins() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(requested("a"), failed("a"), done("a"), requested("b"), done("b"), failed("b"))
    transfers = ledger.space.transfers
    assert (transfers["a"].phase, transfers["a"].reason) == ("failed", "void")
    assert transfers["b"].phase == "done"
    totals = ledger.space.totals
    assert (totals.transfers_done, totals.transfers_failed) == (1, 1)
    assert totals.failures == {"void": 1}
    assert totals.repeated == {"transferred": 1, "transfer_failed": 1}


def test_outcomes_of_unknown_or_foreign_transfers_are_strays() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    p0.write(requested("t"), done("nobody"), failed("nobody"))
    d0.write(done("t"))  # only the target may say so
    assert ledger.space.transfers["t"].phase == "open"
    assert ledger.space.totals.strays == {"transferred": 2, "transfer_failed": 1}
    assert ledger.space.rates == {}


def test_a_miss_is_counted_by_its_cause() -> None:
    ledger, (p0,) = started("p0")
    p0.write(
        Requested(request="a", miss="diverged@512"),
        Requested(request="b", miss="diverged@9"),
        Requested(request="c", miss="too_short"),
        Requested(request="d"),
    )
    assert ledger.space.totals.misses == {"diverged": 2, "too_short": 1}
    assert ledger.space.transfers == {}


def test_words_of_a_counter_are_bounded() -> None:
    ledger, (p0,) = started("p0")
    for number in range(300):
        p0.write(Requested(request="r", miss=f"word{number}"))
    misses = ledger.space.totals.misses
    assert len(misses) <= 129
    assert sum(misses.values()) == 300
    assert misses["other"] > 1


@pytest.mark.parametrize("pin_first", [True, False])
def test_a_pin_meets_its_transfer_in_either_order(pin_first: bool) -> None:
    ledger, (p0, d0) = started("p0", "d0")
    writes = [lambda: d0.write(pin("t")), lambda: p0.write(requested("t"))]
    for write in writes if pin_first else reversed(writes):
        write()
    d0.write(pin("t", how="void"))
    assert ledger.space.transfers["t"].pin == "intact"
    assert ledger.space.early_pins == {}
    totals = ledger.space.totals
    assert (totals.pins_opened, totals.pins_ended) == (1, 1)
    assert totals.repeated == {"pin_ended": 1}


def test_a_refused_pin_held_nothing() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    d0.write(pin("t", how="refused", granted=0))
    p0.write(requested("t"))
    d0.write(pin("t"))
    totals = ledger.space.totals
    assert (totals.pins_refused, totals.pins_opened, totals.pins_ended) == (1, 1, 1)


def test_a_pin_of_another_source_is_a_stray() -> None:
    ledger, (p0, _, d1) = started("p0", "d0", "d1")
    p0.write(requested("t", source="d0"))
    d1.write(pin("t"))
    assert ledger.space.transfers["t"].pin == ""
    assert ledger.space.totals.strays == {"pin_ended": 1}


def test_ended_transfers_are_bounded_open_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, (p0, _) = started("p0", "d0")
    most = bounds.ENDED_TRANSFERS_MAX
    p0.write(requested("open"))
    for start in range(0, most + 50, 50):
        names = [f"t{number}" for number in range(start, start + 50)]
        p0.write(*[requested(name) for name in names], *[done(name) for name in names])
    space = ledger.space
    assert len(space.transfers) == most + 1
    assert "open" in space.transfers
    assert "t49" not in space.transfers
    assert "t50" in space.transfers
    assert violations(ledger.state) == []


def test_an_inventory_ends_lost_transfers_and_opens_unheard_ones() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    p0.write(requested("lost"), requested("kept"), requested("over"), failed("over"))
    d0.write(requested("others", source="p0"))
    p0.join()
    listed = [
        OpenTransfer(transfer=t, request="r", source="d0", granted=3) for t in ("kept", "new")
    ]
    late = OpenTransfer(transfer="over", request="r", source="d0")
    p0.write(Inventory(part=0, last=True, transfers=(*listed, late)))
    transfers = ledger.space.transfers
    assert (transfers["lost"].phase, transfers["lost"].reason) == ("failed", "lost")
    assert transfers["kept"].phase == "open"
    assert (transfers["new"].phase, transfers["new"].granted) == ("open", 3)
    assert transfers["over"].reason == "void"
    assert transfers["others"].phase == "open"


def test_rates_are_learned_from_transfers_and_requests() -> None:
    ledger, (p0, _) = started("p0", "d0")
    for number in range(5):
        p0.write(requested(f"t{number}"), done(f"t{number}", size=1_000_000, read_ms=2.0))
    link = ledger.space.rates["d0>p0/tcp"]
    assert link.n == 5
    assert link.predict(2_000_000) == pytest.approx(4.0, rel=0.02)
    p0.write(
        RequestEnded(
            request="r", prompt_tokens=1_000, computed_tokens=1_000, ttft_ms=600.0, pull_ms=100.0
        ),
        RequestEnded(request="short", prompt_tokens=63, computed_tokens=63, ttft_ms=600.0),
    )
    prefill = ledger.space.prefill["p0"]
    assert prefill.n == 1
    assert prefill.predict(1_000) == pytest.approx(500.0)


def test_a_prefill_that_says_when_it_began_is_believed_for_its_context() -> None:
    ledger, (p0,) = started("p0")
    for number in range(12):
        tokens = 1_000 * (1 + number % 3)
        ended = RequestEnded(
            request=f"r{number}",
            prompt_tokens=9_000 + tokens,
            local_tokens=9_000,
            computed_tokens=tokens,
            ttft_ms=5_000.0,
            prefill_ms=tokens / 10 + tokens * (9_000 + tokens / 2) / 1e5,
        )
        p0.write(ended)
    cost = ledger.space.prefill["p0"]
    assert cost.predict(2_000, 9_000) == pytest.approx(400.0, rel=0.02)


def test_a_queue_that_the_plan_knew_of_is_not_held_against_the_link() -> None:
    for queue_ms, alone_ms in ((0.0, 12.0), (6.0, 6.0)):
        ledger, (p0, _) = started("p0", "d0")
        asked = msgspec.structs.replace(requested("t"), predicted_ms=12.0, queue_ms=queue_ms)
        p0.write(asked, done("t", size=1_000_000, read_ms=12.0))
        assert ledger.space.rates["d0>p0/tcp"].predict(1_000_000) == pytest.approx(alone_ms)


def test_a_handover_waits_for_its_source_and_says_nothing_of_the_link() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(msgspec.structs.replace(requested("t"), basis="handover"), done("t"))
    assert ledger.space.rates == {}


def test_passing_a_pair_over_puts_aside_what_a_trial_may_cost() -> None:
    ledger, (p0, _) = started("p0", "d0")
    dear = Requested(
        request="r", miss="too_dear", source="d0", predicted_ms=300.0, recompute_ms=100.0
    )
    p0.write(*[dear] * 4)
    pair = ledger.space.trials["d0>p0"]
    assert (pair.moving, pair.credit_ms) == (False, pytest.approx(12.0))
    tried = msgspec.structs.replace(requested("t"), predicted_ms=15.0, recompute_ms=5.0)
    p0.write(msgspec.structs.replace(tried, wanted=tried.granted))
    assert (pair.moving, pair.credit_ms) == (False, pytest.approx(2.0))
    p0.write(msgspec.structs.replace(requested("u"), predicted_ms=50.0, recompute_ms=100.0))
    assert pair.moving
    for _ in range(500):
        p0.write(dear)
    assert pair.credit_ms == pytest.approx(100.0), "never more than one request costs"


def test_a_rest_that_was_too_dear_says_nothing_of_whole_prefixes() -> None:
    ledger, (p0, _) = started("p0", "d0")
    rest = Requested(
        request="r", miss="too_dear", source="d0", recompute_ms=4.0, basis="hint", weighed_from=96
    )
    p0.write(rest)
    assert (ledger.space.trials, ledger.space.totals.misses) == ({}, {"too_dear": 1})
    p0.write(msgspec.structs.replace(rest, weighed_from=0))
    assert list(ledger.space.trials) == ["d0>p0"]


def test_a_trial_puts_aside_for_what_its_request_computes() -> None:
    ledger, (p0, _) = started("p0", "d0")
    tried = requested("t")
    tried = msgspec.structs.replace(
        tried, wanted=100 * tried.granted, predicted_ms=15.0, recompute_ms=10.0
    )
    p0.write(tried)
    pair = ledger.space.trials["d0>p0"]
    assert (pair.moving, pair.credit_ms) == (False, pytest.approx(0.03 * 1000.0 - 5.0))


def test_a_probe_is_believed_only_before_real_transfers() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(LinkProbed(peer="d0", backend="tcp", gb_per_s=2.0, floor_ms=0.0))
    assert ledger.space.rates["d0>p0/tcp"].bytes_per_ms() == pytest.approx(2_000_000.0, rel=1e-3)
    p0.write(LinkProbed(peer="d0", backend="tcp", gb_per_s=9.0, floor_ms=0.0))
    assert ledger.space.rates["d0>p0/tcp"].n == 1


def test_the_choice_of_a_backend_is_kept_with_its_reason() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(LinkProbed(peer="d0", backend="tcp", gb_per_s=2.0, floor_ms=0.0))
    assert ledger.space.choices == {}
    only = "the only one both have"
    p0.write(LinkProbed(peer="d0", backend="nixl", gb_per_s=0.0, floor_ms=0.0, why=only))
    assert ledger.space.choices["d0>p0"] == bounds.LinkChoice("nixl", only)
    assert "d0>p0/nixl" not in ledger.space.rates  # nothing was measured, nothing is learned
    p0.write(LinkProbed(peer="d0", backend="tcp", gb_per_s=2.0, floor_ms=0.0, why="fastest"))
    assert ledger.space.choices["d0>p0"].backend == "tcp"


def test_choices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolve_transfers, "RATES_MAX", 3)
    ledger, (p0, _) = started("p0", "d0")
    for number in range(5):
        one = LinkProbed(peer=f"d{number}", backend="t", gb_per_s=0.0, floor_ms=0.0, why="x")
        p0.write(one)
    assert list(ledger.space.choices) == ["d2>p0", "d3>p0", "d4>p0"]


def test_requests_add_up_and_imbalance_is_counted() -> None:
    ledger, (p0,) = started("p0")
    p0.write(
        RequestEnded(
            request="a", prompt_tokens=10, local_tokens=2, pulled_tokens=3, computed_tokens=5
        ),
        RequestEnded(request="b", prompt_tokens=10, computed_tokens=9, output_tokens=4),
        RequestEnded(request="c", prompt_tokens=-5, computed_tokens=-5),
    )
    totals = ledger.space.totals
    assert (totals.requests, totals.prompt_tokens, totals.computed_tokens) == (3, 20, 14)
    assert (totals.local_tokens, totals.pulled_tokens, totals.output_tokens) == (2, 3, 4)
    assert totals.unbalanced == 1


def test_more_than_granted_is_noticed() -> None:
    ledger, (p0, _) = started("p0", "d0")
    p0.write(requested("t", granted=9), done("t"))
    assert ledger.space.totals.strays == {"transferred_beyond_granted": 1}
