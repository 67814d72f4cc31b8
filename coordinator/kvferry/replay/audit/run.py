"""The audit of a range: every check over every event, then the state that the range folds to."""

from __future__ import annotations

import asyncio

import msgspec

from kvferry.core.invariants import violations
from kvferry.core.state import JOINED, State
from kvferry.errors import CodecError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort, Stored, StreamBounds
from kvferry.replay.audit.finding import Check, End, Finding, Findings, Seen
from kvferry.replay.audit.keeping import Keeping
from kvferry.replay.audit.lanes import Lanes
from kvferry.replay.audit.leadership import Leadership
from kvferry.replay.audit.leases import Leases
from kvferry.replay.audit.predictions import Judgement, Predictions
from kvferry.replay.audit.requests import Requests
from kvferry.replay.audit.sends import Sends
from kvferry.replay.audit.slots import Slots
from kvferry.replay.audit.transfers import Transfers
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import between, closing
from kvferry.replay.step import read_batch, step

FINDINGS_MAX = 1_000
PATIENCE_MS = 120_000
YIELD_MESSAGES = 256


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found."""

    first: int
    last: int
    """Sequences of the facts that were audited."""
    whole: bool
    """The range begins with the ledger's first message."""
    messages: int
    events: int
    violations: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    beyond: int
    """Findings that are not listed, for there are more than :data:`FINDINGS_MAX`."""
    predictions: Judgement
    """What plans said beside what came: information, no violation."""


class _Reader:
    """Feeds events to the checks."""

    def __init__(self, checks: list[Check], whole: bool, found: Findings) -> None:
        self._checks = checks
        self._found = found
        self._lanes = Lanes(whole)
        self.messages = 0
        self.events = 0
        self.stored_ms = 0
        self._last = 0

    def begin(self, first: int) -> None:
        """The range begins with this sequence."""
        self._last = first - 1

    def take(self, stream: str, stored: Stored) -> None:
        """The next message of the range."""
        self.lost(stream, stored.seq)
        self.messages += 1
        self.stored_ms = max(self.stored_ms, stored.stored_ms)
        try:
            batch = read_batch(stored)
        except CodecError as error:
            what = f"message {stored.seq} on {stored.subject} cannot be read: {error}"
            self._unread(stream, stored.seq, stored.subject, what)
            return
        for number, entry in enumerate(batch.entries):
            self.events += 1
            lane_seq = batch.seq + number
            seen = Seen(stream, stored.seq, stored.stored_ms, batch, entry, lane_seq)
            self._check(self._lanes.take(seen, self._found))

    def lost(self, stream: str, until: int) -> None:
        """A stream numbers its messages without a hole; what lies before ``until`` is gone."""
        first, self._last = self._last + 1, until
        if first < until:
            what = f"messages {first} to {until - 1} of {stream} are gone"
            self._unread(stream, first, stream, what)

    def _unread(self, stream: str, seq: int, about: str, story: str) -> None:
        self._found.violations.append(
            Finding(invariant="readable", seq=seq, stream=stream, about=about, story=story)
        )

    def end(self, end: End) -> None:
        """The range is over."""
        self._check(self._lanes.end(self._found))
        for check in self._checks:
            check.end(end, self._found)

    def _check(self, due: list[Seen]) -> None:
        for seen in due:
            for check in self._checks:
                check.see(seen, self._found)


async def audit(
    log: LogPort,
    *,
    first: int | None = None,
    last: int | None = None,
    patience_ms: int = PATIENCE_MS,
    progress: Progress | None = None,
) -> Audit:
    """Check all invariants over a range of the facts, and the blocks lane beside them.

    Args:
        log: a ledger or an exported file.
        first: first message of the facts; by default the ledger's first.
        last: last message; by default the present end.
        patience_ms: what is open at the range's end for less than this is not held against it.
        progress: told now and then as (messages read, messages to read).

    Raises:
        LedgerUnavailable: the log does not answer.
    """
    bounds = await log.bounds(FACTS_STREAM)
    begin = max(bounds.first, first or bounds.first)
    end = bounds.last if last is None else min(last, bounds.last)
    blocks = await log.bounds(BLOCKS_STREAM)
    whole = begin == 1
    found = Findings(FINDINGS_MAX)
    predictions = Predictions()
    state = State() if begin <= 1 else await fold_to(log, to_seq=begin - 1)
    checks: list[Check] = [
        *(Requests(), Transfers(whole), Leases(), Leadership(), Slots(whole), Sends(whole)),
        *(Keeping(state), predictions),
    ]
    reader = _Reader(checks, whole, found)
    total = end - begin + 1 + blocks.last - blocks.first + 1
    reader.begin(begin)
    async with closing(between(log, FACTS_STREAM, begin, end)) as messages:
        async for stored in messages:
            reader.take(FACTS_STREAM, stored)
            step(state, stored)
            await _breathe(reader.messages, total, progress)
    reader.lost(FACTS_STREAM, end + 1)
    reader.end(End(reader.stored_ms, _living(state), patience_ms))
    if begin == bounds.first and end == bounds.last:
        await _detail(log, blocks, reader, found, total, progress)
    for text in violations(state):
        found.broken("state", None, "", f"the state at {state.position}: {text}")
    return Audit(
        first=begin,
        last=end,
        whole=whole,
        messages=reader.messages,
        events=reader.events,
        violations=tuple(found.violations),
        notes=tuple(found.notes),
        beyond=found.beyond,
        predictions=predictions.judgement(),
    )


async def _detail(
    log: LogPort,
    bounds: StreamBounds,
    reader: _Reader,
    found: Findings,
    total: int,
    progress: Progress | None,
) -> None:
    """The blocks lane, of which only the hand-over can be checked: no decision reads it."""
    detail = _Reader([], bounds.first == 1, found)
    detail.begin(bounds.first)
    async with closing(between(log, BLOCKS_STREAM, bounds.first, bounds.last)) as messages:
        async for stored in messages:
            detail.take(BLOCKS_STREAM, stored)
            await _breathe(reader.messages + detail.messages, total, progress)
    detail.end(End(detail.stored_ms, frozenset(), 0))
    reader.messages += detail.messages
    reader.events += detail.events


async def _breathe(done: int, total: int, progress: Progress | None) -> None:
    if done % YIELD_MESSAGES:
        return
    if progress is not None:
        progress(done, total)
    await asyncio.sleep(0)


def _living(state: State) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (name, node.name, node.incarnation)
        for name, space in state.spaces.items()
        for node in space.nodes.values()
        if node.status == JOINED
    )
