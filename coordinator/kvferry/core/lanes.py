"""Which batches of a node's facts may be applied now: each lane in order, without a hole.

The log's producers resend from the first unacknowledged message on, and its deduplication drops
the copies it has, so that a message may be stored after later ones. A reader therefore keeps up
to one producer window of batches in a reorder buffer, which is part of the state and of every
snapshot. A hole that stays longer breaks the record until the node's next epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import FACTS, NAMES, SCHEMAS, AnyEvent, NodeJoined
from kvferry.core.evolve import fence
from kvferry.core.state import (
    EARLY_LANES_MAX,
    FENCED,
    HELD_BATCHES_MAX,
    JOINED,
    HeldBatch,
    HeldEntry,
    LaneState,
    NodeState,
    SpaceState,
    State,
)
from kvferry.core.totals import bump

Ready = tuple[int, tuple[Entry, ...], Position]
"""Sequence of the first entry, the entries, and where they were stored."""

_ENCODER = msgspec.msgpack.Encoder()


def lane_of(state: State, batch: Batch) -> LaneState | None:
    """The lane that the batch continues or begins, or None if nothing of it counts any more.

    A record that has not begun waits under ``SpaceState.early`` for its ``node_joined``.
    """
    space = state.space(batch.space)
    node = space.nodes.get(batch.node)
    if node is not None:
        if batch.incarnation == node.incarnation:
            if batch.epoch == node.epoch:
                if node.status == JOINED:
                    return _current(node)
                bump(state.dropped, "fenced" if node.status == FENCED else "void")
                return None
            if batch.epoch < node.epoch:
                bump(state.dropped, "superseded")
                return None
        elif batch.incarnation in node.superseded:
            bump(state.dropped, "superseded")
            return None
    key = early_key(batch.node, batch.incarnation, batch.epoch)
    lane = space.early.get(key)
    if lane is None:
        if len(space.early) >= EARLY_LANES_MAX:
            del space.early[next(iter(space.early))]
        lane = space.early[key] = LaneState(incarnation=batch.incarnation, epoch=batch.epoch)
    if lane.broken:
        bump(state.dropped, "fenced")
        return None
    return lane


def early_key(node: str, incarnation: str, epoch: int) -> str:
    """The key of a record in ``SpaceState.early``."""
    return f"{node}/{incarnation}/{epoch}"


def accept(state: State, lane: LaneState, batch: Batch, position: Position) -> list[Ready]:
    """What may be applied now that this batch is here, in order; advances ``lane.last``."""
    if batch.seq != lane.last + 1:
        return _out_of_order(state, lane, batch, position)
    lane.last += len(batch.entries)
    ready = [(batch.seq, batch.entries, position)]
    if lane.held:
        ready.extend(_drain(lane))
    return ready


def begins(first: AnyEvent, lane: LaneState) -> bool:
    """Whether this event begins the lane's record as it must: with its ``node_joined``."""
    return (
        isinstance(first, NodeJoined)
        and first.incarnation == lane.incarnation
        and first.epoch == lane.epoch
    )


def adopt(space: SpaceState, node: str, lane: LaneState) -> None:
    """Move a record that has begun from ``early`` to its node; older ones of the name go."""
    now = space.nodes[node]
    now.lanes[FACTS] = lane
    past = [
        key
        for key, other in space.early.items()
        if key.startswith(f"{node}/")
        and (
            other.incarnation in now.superseded
            or (other.incarnation == lane.incarnation and other.epoch <= lane.epoch)
        )
    ]
    for key in past:
        del space.early[key]


def _out_of_order(state: State, lane: LaneState, batch: Batch, position: Position) -> list[Ready]:
    end = batch.seq + len(batch.entries) - 1
    if end <= lane.last:
        bump(state.dropped, "duplicate")
        return []
    if batch.seq <= lane.last:  # overlaps what is applied: only the rest is new
        entries = batch.entries[lane.last + 1 - batch.seq :]
        first = lane.last + 1
        lane.last = end
        return [(first, entries, position), *_drain(lane)]
    at = bisect_left(lane.held, batch.seq, key=_seq)
    if at < len(lane.held) and lane.held[at].seq == batch.seq:
        if len(lane.held[at].entries) >= len(batch.entries):
            bump(state.dropped, "duplicate")
            return []
        del lane.held[at]
    held = HeldBatch(
        seq=batch.seq,
        entries=tuple(_pack(entry) for entry in batch.entries),
        stream_seq=position.stream_seq,
        stored_ms=position.stored_ms,
    )
    lane.held.insert(at, held)
    if len(lane.held) > HELD_BATCHES_MAX:
        _break(state, lane, batch)
    return []


def _drain(lane: LaneState) -> list[Ready]:
    """Held batches that the lane has caught up with."""
    ready: list[Ready] = []
    while lane.held and lane.held[0].seq <= lane.last + 1:
        held = lane.held.pop(0)
        fresh = held.entries[lane.last + 1 - held.seq :]
        if fresh:
            entries = tuple(_unpack(entry) for entry in fresh)
            ready.append((lane.last + 1, entries, Position(held.stream_seq, held.stored_ms)))
            lane.last += len(fresh)
    return ready


def _seq(held: HeldBatch) -> int:
    return held.seq


def _break(state: State, lane: LaneState, batch: Batch) -> None:
    why = f"facts {lane.last + 1} to {lane.held[0].seq - 1} of epoch {lane.epoch} are missing"
    lane.held.clear()
    lane.broken = True
    node = state.space(batch.space).nodes.get(batch.node)
    if node is not None and node.lanes.get(FACTS) is lane:
        fence(state, batch.space, batch.node, why)


def _current(node: NodeState) -> LaneState:
    lane = node.lanes.get(FACTS)
    if lane is None:
        lane = LaneState(incarnation=node.incarnation, epoch=node.epoch)
        node.lanes[FACTS] = lane
    return lane


def _pack(entry: Entry) -> HeldEntry:
    return HeldEntry(
        NAMES[type(entry.event)], _ENCODER.encode(entry.event), entry.cause, entry.wall_ms
    )


def _unpack(held: HeldEntry) -> Entry:
    event = _DECODERS[held.name].decode(held.event)
    return Entry(event, held.cause, held.wall_ms)


_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(kind) for name, (_, kind) in SCHEMAS.items()
}
