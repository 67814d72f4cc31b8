"""The fold over arbitrary histories: cuts, duplicates, loss, restarts, rival leaders."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.stories import Node, fold, history, stored

from kvferry.core import lanes
from kvferry.core.apply import apply_batch
from kvferry.core.digest import digest
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import COORD, FACTS, RequestEnded, TransferFailed, Transferred
from kvferry.core.invariants import violations
from kvferry.core.snapshot import decode, encode
from kvferry.core.state import State

SEEDS = st.integers(0, 2**32)


def lossy_history(seed: int, length: int = 120) -> list[Batch]:
    rng = random.Random(seed)
    return stored(rng, history(rng, length), lossy=True)


@given(SEEDS)
def test_every_cut_through_a_snapshot_gives_the_same_state(seed: int) -> None:
    batches = lossy_history(seed)
    whole = fold(State(), batches)
    state = State()
    for seq, batch in enumerate(batches, 1):
        apply_batch(state, batch, Position(seq, seq * 10))
        state = decode(encode(state))
    assert state == whole
    assert digest(state) == digest(whole)


@given(SEEDS)
def test_invariants_hold_after_every_batch(seed: int) -> None:
    state = State()
    for seq, batch in enumerate(lossy_history(seed), 1):
        apply_batch(state, batch, Position(seq, seq * 10))
        assert violations(state) == []


@given(SEEDS)
def test_invariants_and_cuts_hold_when_records_break(seed: int) -> None:
    """The same with a window so small that holes fence nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "HELD_BATCHES_MAX", 3)
        batches = lossy_history(seed)
        whole = fold(State(), batches)
        state = State()
        for seq, batch in enumerate(batches, 1):
            apply_batch(state, batch, Position(seq, seq * 10))
            assert violations(state) == []
            state = decode(encode(state))
        assert state == whole


@given(SEEDS)
def test_duplicates_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    batches = history(rng, 100)
    state = State()
    seen: list[Batch] = []
    for seq, batch in enumerate(batches, 1):
        applied = apply_batch(state, batch, Position(seq, seq * 10))
        seen.append(batch)
        again = rng.choice(seen)
        if again.lane == COORD and again is not batch:
            continue  # an old decision cannot be stored again: each expects its predecessor
        before = digest(state)
        repeated = apply_batch(state, again, Position(seq, seq * 10))
        if batch.lane == FACTS or again is not batch:
            assert repeated == []
            assert digest(state) == before
        else:
            assert len(repeated) <= len(applied)


@given(SEEDS)
def test_one_writer_reordered_within_its_window_folds_as_written(seed: int) -> None:
    rng = random.Random(seed)
    node = Node("p0", 1, rng)
    batches = [node.join()]
    batches += [node.batch(*(node.act() for _ in range(3))) for _ in range(80)]
    places = {id(batch): seq for seq, batch in enumerate(batches, 1)}
    state = State()
    for batch in stored(rng, batches, lossy=False):
        seq = places[id(batch)]
        apply_batch(state, batch, Position(seq, seq * 10))
    assert digest(state) == digest(fold(State(), batches))


@given(SEEDS, st.integers(0, 2**32))
def test_one_altered_event_changes_the_digest(seed: int, pick: int) -> None:
    rng = random.Random(seed)
    node = Node("p0", 1, rng)
    batches = [node.join(), *(node.batch(node.act(), node.ended()) for _ in range(30))]
    before = digest(fold(State(), batches))
    at = 1 + pick % (len(batches) - 1)
    batch = batches[at]
    event = batch.entries[-1].event
    assert isinstance(event, RequestEnded)
    altered = msgspec.structs.replace(event, output_tokens=event.output_tokens + 1)
    entries = (*batch.entries[:-1], Entry(event=altered))
    batches[at] = msgspec.structs.replace(batch, entries=entries)
    assert digest(fold(State(), batches)) != before


@given(SEEDS)
def test_the_first_outcome_wins_and_stays(seed: int) -> None:
    first: dict[str, tuple[str, str, int]] = {}
    state = State()
    for seq, batch in enumerate(lossy_history(seed), 1):
        apply_batch(state, batch, Position(seq, seq * 10))
        for space in state.spaces.values():
            for name in space.ended:
                ended = space.transfers[name]
                outcome = (ended.phase, ended.reason, ended.ended_ms)
                assert first.setdefault(name, outcome) == outcome


@given(SEEDS)
def test_a_lossless_history_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    node = Node("p0", 1, rng)
    batches = [node.join(), *(node.batch(*(node.act() for _ in range(3))) for _ in range(60))]
    state = fold(State(), stored(rng, batches, lossy=False))
    (space,) = state.spaces.values()
    written = [entry.event for batch in batches for entry in batch.entries]
    assert sum(space.totals.events.values()) == len(written)
    outcomes = [event for event in written if isinstance(event, (Transferred, TransferFailed))]
    assert space.totals.transfers_done + space.totals.transfers_failed == len(outcomes)
    assert {name: offer.count for name, offer in space.offers.items()} == {
        name: offer.count for name, offer in node.offers.items()
    }
    open_now = {name for name, move in space.transfers.items() if move.phase == "open"}
    assert open_now == set(node.open)


@given(SEEDS)
def test_after_loss_a_new_epoch_restores_what_the_node_holds(seed: int) -> None:
    rng = random.Random(seed)
    node = Node("p0", 1, rng)
    batches = [node.join(), *(node.batch(node.act()) for _ in range(60))]
    kept = stored(rng, batches, lossy=True)
    state = fold(State(), kept)
    fold(state, [node.join()], len(kept) + 1)
    (space,) = state.spaces.values()
    assert {name: offer.count for name, offer in space.offers.items()} == {
        name: offer.count for name, offer in node.offers.items()
    }
    for name in node.open:
        assert space.transfers[name].phase in ("open", "failed")
    assert violations(state) == []
