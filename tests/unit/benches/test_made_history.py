"""The history that benchmarks are filled with is one that nodes could have written."""

from __future__ import annotations

import pytest

from kvferry.bench.history.shape import SPACE, Message, Shape
from kvferry.bench.history.talks import History
from kvferry.core.events import Produced
from kvferry.core.state import OPEN, State
from kvferry.errors import ConfigError
from kvferry.ledger.codec import decode
from kvferry.ports.log import Stored
from kvferry.replay.step import step

SHAPE = Shape(nodes=4, pool_blocks=2_000)
BLOCK_EVENTS = 30_000


def folded(messages: list[Message]) -> State:
    state = State()
    for seq, message in enumerate(messages, 1):
        step(state, Stored(seq, message.subject, message.data, 1))
    return state


def made() -> tuple[History, list[Message]]:
    history = History(SHAPE)
    return history, [*history.join(), *history.until(BLOCK_EVENTS)]


def test_everything_counts_and_nothing_is_odd() -> None:
    history, messages = made()
    state = folded(messages)
    space = state.spaces[SPACE]
    totals = space.totals
    assert (totals.strays, totals.repeated, totals.unbalanced) == ({}, {}, 0)
    assert (state.dropped, state.quarantined_total) == ({}, 0)
    assert sum(totals.events.values()) == history.written.facts
    facts = [message for message in messages if message.subject.endswith(".facts")]
    assert len(facts) == history.written.messages
    assert sum(len(message.data) for message in facts) == history.written.bytes
    assert totals.requests == 2 * history.written.turns
    assert totals.pins_opened == totals.pins_ended > 0
    assert all(transfer.phase != OPEN for transfer in space.transfers.values())


def test_block_events_are_what_came_to_be_held_less_what_still_is() -> None:
    history, messages = made()
    space = folded(messages).spaces[SPACE]
    held = sum(offer.count for offer in space.offers.values())
    gone = space.totals.evicted_blocks["reuse"]
    assert history.written.block_events == held + 2 * gone
    for node in space.nodes:
        kept = [offer.count for offer in space.offers.values() if offer.node == node]
        assert 0 < sum(kept) <= SHAPE.pool_blocks
    # What is said to be held as a whole is offered as a whole.
    listed = {bytes(offer.hashes) for offer in space.offers.values()}
    assert history.held()
    assert set(history.held()) <= listed


def test_detail_tells_of_every_block_that_came_to_be() -> None:
    history, messages = made()
    batches = [decode(one.data) for one in messages if one.subject.endswith(".blocks")]
    events = [entry.event for batch in batches for entry in batch.entries]
    assert len(events) == history.written.detail
    produced = sum(event.count for event in events if isinstance(event, Produced))
    space = folded(messages).spaces[SPACE]
    gone = space.totals.evicted_blocks["reuse"]
    assert produced == sum(offer.count for offer in space.offers.values()) + gone


def test_equal_shapes_give_equal_histories_and_others_do_not() -> None:
    assert made()[1] == made()[1]
    other = History(Shape(nodes=4, pool_blocks=2_000, turn_tokens=640))
    assert [*other.join(), *other.until(BLOCK_EVENTS)] != made()[1]


@pytest.mark.parametrize(
    ("option", "value"), [("nodes", 3), ("turns", 0), ("pool_blocks", 10), ("turn_tokens", -1)]
)
def test_a_shape_that_makes_no_sense_names_its_option(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match="--" + option.replace("_", "-")):
        Shape(**{option: value})
