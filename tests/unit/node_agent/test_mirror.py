"""The mirror says what the fold says."""

from __future__ import annotations

import random

from tests.unit.node_agent.support import SPACE, offer

from kvferry.core.applied import Applied
from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    NodeJoined,
    Requested,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.core.state import OPEN, SpaceState, State
from kvferry.ledger.codec import MESSAGE_BYTES_MAX, encode
from kvferry.node.agent.mirror import Mirror


def batch(seq: int, events: list[AnyEvent], epoch: int = 1) -> Batch:
    entries = tuple(Entry(event) for event in events)
    return Batch(
        space=SPACE,
        node="p0",
        incarnation="aa",
        epoch=epoch,
        lane="facts",
        seq=seq,
        entries=entries,
    )


def joined(epoch: int) -> NodeJoined:
    return NodeJoined(incarnation="aa", epoch=epoch, address="a:1", block_size=64)


def shape(space: SpaceState) -> tuple[object, object]:
    """Offers and open transfers, without the times of storing."""
    offers = {
        o.offer: (o.rev, o.tier, o.count, o.tail, o.hashes, o.base) for o in space.offers.values()
    }
    transfers = {t.transfer for t in space.transfers.values() if t.phase == OPEN}
    return offers, transfers


def mirror_shape(mirror: Mirror) -> tuple[object, object]:
    offers = {
        o.offer: (o.rev, o.tier, o.count, o.tail, o.hashes, o.base) for o in mirror.offers.values()
    }
    return offers, set(mirror.transfers)


def random_events(rng: random.Random, count: int) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for _ in range(count):
        name, rev = f"o{rng.randrange(6)}", rng.randrange(1, 40)
        base = rng.choice([0, 2])
        move = f"t{rng.randrange(8)}-{rng.randrange(30)}"
        events.append(
            rng.choice(
                [
                    Retained(
                        offer=name,
                        rev=rev,
                        tier=rng.choice(["cache", "hbm"]),
                        count=8,
                        tail=bytes([rev]) * 32,
                        hashes=bytes(range((8 - base) // 2 * 8)),
                        base=base,
                    ),
                    Evicted(offer=name, rev=rev, keep=rng.randrange(9), reason="reuse"),
                    Evicted(offer=name, rev=rev, keep=0, reason="expired"),
                    Requested(request="r", transfer=move, source="d0"),
                    Requested(request="r", miss="nothing_held"),
                    Transferred(
                        transfer=move,
                        request="r",
                        source="d0",
                        start=0,
                        count=1,
                        tokens=64,
                        bytes=1,
                        backend="tcp",
                    ),
                    TransferFailed(
                        transfer=move, request="r", source="d0", stage="pin", reason="refused"
                    ),
                ]
            )
        )
    return events


def unrepeated(events: list[AnyEvent]) -> list[AnyEvent]:
    """Without a second ``requested`` of one transfer, which no node writes."""
    seen: set[str] = set()
    kept = []
    for event in events:
        if isinstance(event, Requested) and event.transfer:
            if event.transfer in seen:
                continue
            seen.add(event.transfer)
        kept.append(event)
    return kept


def test_the_mirror_follows_the_fold_and_rebuilds_it() -> None:
    rng = random.Random(7)
    for _ in range(60):
        events = unrepeated(random_events(rng, 60))
        state, mirror = State(), Mirror(64)
        apply_batch(state, batch(1, [joined(1), *events]), Position(1, 1))
        for event in events:
            mirror.apply(event)
        known = shape(state.space(SPACE))
        assert mirror_shape(mirror) == known

        fresh = State()
        applied: list[Applied] = []
        parts: list[AnyEvent] = [joined(2), *mirror.parts()]
        applied += apply_batch(fresh, batch(1, parts, epoch=2), Position(1, 1))
        assert shape(fresh.space(SPACE)) == known
        assert applied


def test_one_altered_event_shows() -> None:
    events = unrepeated(random_events(random.Random(3), 40))
    one, other = Mirror(64), Mirror(64)
    for event in events:
        one.apply(event)
        other.apply(event)
    other.apply(Retained(offer="new", rev=1, tier="cache", count=1, tail=bytes(32), hashes=b""))
    assert mirror_shape(one) != mirror_shape(other)


def test_an_empty_mirror_is_one_last_part() -> None:
    parts = Mirror(16).parts()
    assert [(part.part, part.last, part.offers) for part in parts] == [(0, True, ())]


def test_a_large_inventory_comes_in_parts_that_fit_a_message() -> None:
    mirror = Mirror(128)
    for number in range(300):
        mirror.apply(offer(f"o{number}", 400))
    for number in range(2000):
        mirror.apply(Requested(request="r", transfer=f"t{number}", source="d0"))
    parts = mirror.parts()
    assert len(parts) > 3
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(part.offers) for part in parts) == 300
    assert sum(len(part.transfers) for part in parts) == 2000
    for part in parts:
        assert len(encode(batch(1, [part]))) < MESSAGE_BYTES_MAX
