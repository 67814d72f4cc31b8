"""One stored message onto a state: the same step for the live coordinator and for every replay."""

from __future__ import annotations

import logging

from kvferry.core.apply import Applied, apply_batch, cross_hole, quarantine
from kvferry.core.envelope import Batch, Position
from kvferry.core.events import COORD
from kvferry.core.slots_evolve import lose_sight
from kvferry.core.state import State
from kvferry.errors import CodecError, KVFerryError
from kvferry.ledger.codec import decode
from kvferry.ledger.subjects import coord_subject, parse
from kvferry.ports.log import Stored

log = logging.getLogger("kvferry.replay")


def read_batch(stored: Stored) -> Batch:
    """The batch of a message, which must be what its subject says.

    Permissions are given by subject, so a body that names another node is refused: a node writes
    its own facts only.

    Raises:
        CodecError: it cannot be decoded, or belongs under another subject.
    """
    batch = decode(stored.data)
    place = parse(stored.subject)
    written = "" if batch.lane == COORD else batch.node
    if (place.space, place.node, place.lane) != (batch.space, written, batch.lane):
        raise CodecError(
            f"a batch of {batch.space}/{batch.node} lane {batch.lane} under the subject "
            f"{stored.subject}"
        )
    return batch


def skip_lost(state: State, next_seq: int) -> None:
    """What lies between the state and ``next_seq`` is in the stream no more, if anything does."""
    first, last = state.position + 1, next_seq - 1
    if first > last:
        return
    if state.position:
        log.warning(
            "messages %d to %d of the ledger are gone unread: its limits dropped them, or its "
            "store was damaged; every node is asked for an inventory",
            first,
            last,
        )
    cross_hole(state, first, last)


def step(state: State, stored: Stored) -> list[Applied]:
    """Fold one message and move the state's position past it.

    Never raises for what a message contains: one that cannot be decoded or applied is quarantined
    with its sequence. What is quarantined depends on the message and the state alone, so that
    every fold of the same messages comes to the same state. A stream numbers its messages without
    a gap, so a number that is passed over after the first message is one that is lost.
    """
    skip_lost(state, stored.seq)
    try:
        applied = apply_batch(state, read_batch(stored), Position(stored.seq, stored.stored_ms))
    except KVFerryError as error:
        _quarantine(state, stored, str(error))
        applied = []
    except Exception as error:
        log.exception(
            "message %d on %s could not be applied and is quarantined; this is a bug of kvferry, "
            "please report it with the traceback",
            stored.seq,
            stored.subject,
        )
        _quarantine(state, stored, f"{type(error).__name__}: {error}")
        applied = []
    state.position = stored.seq
    return applied


def _quarantine(state: State, stored: Stored, why: str) -> None:
    """Among decisions that cannot be read there may be leases of decode slots."""
    quarantine(state, stored.seq, stored.subject, why)
    for name, space in state.spaces.items():
        if stored.subject == coord_subject(name):
            lose_sight(space.slots, stored.seq)
