"""What stands around events: one batch is one stored message of one lane."""

from __future__ import annotations

import msgspec

from kvferry.core.events import AnyEvent


class Entry(msgspec.Struct, frozen=True):
    """One event of a batch with its schema version and what caused it."""

    event: AnyEvent
    cause: str = ""
    """A request, transfer or offer id."""
    wall_ms: int = 0
    """The writer's wall clock, Unix milliseconds; for people, never for decisions."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive events of one lane.

    ``seq`` is the lane sequence of the first entry; entry ``i`` has ``seq + i``. Sequences
    start at 1 in every (incarnation, epoch, lane) and count events, so that a reader can prove
    that none is missing. For the coord lane ``node`` is the replica, ``epoch`` the term, and
    the server's expected-last-subject-sequence orders the writers.
    """

    space: str
    node: str
    incarnation: str
    epoch: int
    lane: str
    seq: int
    entries: tuple[Entry, ...]

    @property
    def message_id(self) -> str:
        """The ``Nats-Msg-Id``: the same batch sent twice is stored once."""
        return f"{self.node}:{self.incarnation}:{self.epoch}:{self.lane}:{self.seq}"


class Position(msgspec.Struct, frozen=True):
    """Where a batch lies in its stream."""

    stream_seq: int
    stored_ms: int
    """The server's store time, Unix milliseconds."""
