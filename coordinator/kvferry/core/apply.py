"""One stored batch to state: which of it counts, in which order, then :mod:`evolve`."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import BLOCKS, COORD, FACTS
from kvferry.core.evolve import fence, fold
from kvferry.core.lanes import accept, adopt, begins, lane_of
from kvferry.core.slots_evolve import lose_sight
from kvferry.core.state import JOINED, QUARANTINED_MAX, LaneState, Quarantined, State
from kvferry.core.totals import bump

__all__ = ["Applied", "apply_batch", "cross_hole", "quarantine"]


def apply_batch(state: State, batch: Batch, position: Position) -> list[Applied]:
    """Fold one batch of the stream KVF; returns what was applied, in order.

    That may be nothing (a duplicate, a void record, a batch that waits for an earlier one) or
    more than the batch (it closed a hole). Batches of the blocks lane lie in another stream and
    change nothing.
    """
    if batch.lane == BLOCKS:
        return []
    state.position = max(state.position, position.stream_seq)
    done: list[Applied] = []
    if not batch.entries:
        return done
    if batch.lane != FACTS:
        if batch.lane != COORD:
            bump(state.dropped, "unknown_lane")
            return done
        # The server's expected-last-subject-sequence orders this lane.
        _fold_all(state, batch, batch.seq, batch.entries, position, done)
        return done
    lane = lane_of(state, batch)
    if lane is None:
        return done
    for seq, entries, where in accept(state, lane, batch, position):
        if seq == 1 and not _begin(state, batch, entries, where, lane, done):
            return done
        skip = 1 if seq == 1 else 0
        _fold_all(state, batch, seq + skip, entries[skip:] if skip else entries, where, done)
    return done


def quarantine(state: State, seq: int, subject: str, why: str) -> None:
    """Count a stored message that cannot be decoded, and remember the last ones."""
    state.position = max(state.position, seq)
    state.quarantined_total += 1
    state.quarantined.append(Quarantined(seq, subject, why))
    if len(state.quarantined) > QUARANTINED_MAX:
        del state.quarantined[0]


def cross_hole(state: State, first: int, last: int) -> None:
    """Messages ``first`` to ``last`` are not in the stream any more, and we never saw them.

    Whose facts they were cannot be known. So no node's record is believed until its next epoch,
    which begins with an inventory, and no decode slot is taken for free before it was seen idle;
    policies and what was learned stay. To a state that has seen
    nothing yet the stream just begins later.
    """
    if not state.position:
        state.position = last
        return
    why = f"messages {first} to {last} of the ledger are gone unread"
    for name, space in state.spaces.items():
        for node in space.nodes.values():
            if node.status == JOINED:
                fence(state, name, node.name, why)
        lose_sight(space.slots, last)
    bump(state.dropped, "lost", last - first + 1)
    state.position = last


def _begin(
    state: State,
    batch: Batch,
    entries: tuple[Entry, ...],
    where: Position,
    lane: LaneState,
    done: list[Applied],
) -> bool:
    """Fold the ``node_joined`` that a record must begin with; without it the record is broken."""
    if begins(entries[0].event, lane):
        _fold_all(state, batch, 1, entries[:1], where, done)
    if done:
        adopt(state.space(batch.space), batch.node, lane)
        return True
    bump(state.dropped, "not_begun")
    lane.broken = True
    lane.held.clear()
    return False


def _fold_all(
    state: State,
    batch: Batch,
    seq: int,
    entries: tuple[Entry, ...],
    where: Position,
    done: list[Applied],
) -> None:
    space, node, incarnation, epoch, lane = (
        batch.space,
        batch.node,
        batch.incarnation,
        batch.epoch,
        batch.lane,
    )
    for offset, entry in enumerate(entries):
        applied = Applied(space, node, incarnation, epoch, lane, seq + offset, entry, where)
        if fold(state, applied):
            done.append(applied)
