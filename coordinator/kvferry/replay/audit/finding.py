"""What an audit finds."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.story import describe


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A broken invariant, or something that is worth a note."""

    invariant: str
    seq: int
    """The stream sequence of the message that shows it; 0 where it is the end of the range."""
    stream: str
    about: str
    """A request, transfer, lease, node or term; what to give to `kvferry explain`."""
    story: str
    """What happened, in plain words."""


class Seen(msgspec.Struct, frozen=True):
    """One event where it stands."""

    stream: str
    seq: int
    stored_ms: int
    batch: Batch
    entry: Entry
    lane_seq: int

    @property
    def node(self) -> str:
        return self.batch.node

    @property
    def life(self) -> tuple[str, str, str]:
        """Whose process wrote it: space, node, incarnation."""
        return (self.batch.space, self.batch.node, self.batch.incarnation)

    @property
    def told(self) -> str:
        """The event in plain words."""
        return describe(self.batch.node, self.entry.event)


class Findings:
    """Collects, within a bound; what is beyond it is counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.violations: list[Finding] = []
        self.notes: list[Finding] = []
        self.beyond = 0

    def broken(self, invariant: str, seen: Seen | None, about: str, story: str) -> None:
        """An invariant does not hold."""
        self._add(self.violations, invariant, seen, about, story)

    def note(self, invariant: str, seen: Seen | None, about: str, story: str) -> None:
        """Something that is allowed, and that an operator may want to know."""
        self._add(self.notes, invariant, seen, about, story)

    def _add(
        self, where: list[Finding], invariant: str, seen: Seen | None, about: str, story: str
    ) -> None:
        if len(where) >= self._most:
            self.beyond += 1
            return
        where.append(
            Finding(
                invariant=invariant,
                seq=seen.seq if seen is not None else 0,
                stream=seen.stream if seen is not None else "",
                about=about,
                story=story,
            )
        )


class Check(Protocol):
    """One invariant, event by event."""

    def see(self, seen: Seen, found: Findings) -> None:
        """The next event of the range."""
        ...

    def end(self, end: End, found: Findings) -> None:
        """The range is over."""
        ...


class End(msgspec.Struct, frozen=True):
    """How things stand when the range is over."""

    stored_ms: int
    """When its last message was stored."""
    living: frozenset[tuple[str, str, str]]
    """Processes (space, node, incarnation) that are joined then."""
    patience_ms: int
    """What has not ended for less than this may still be under way."""
