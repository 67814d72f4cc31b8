"""Check that a point lies within what a ledger covers, and fold to it."""

from __future__ import annotations

from kvferry.cli import guard
from kvferry.cli.times import Point, iso, wall_ms
from kvferry.core.state import State
from kvferry.errors import ConfigError
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import covered, first_from


async def state_at(
    log: LogPort, point: Point, *, afresh: bool = False, progress: Progress | None = None
) -> State:
    """The state after the point; without either of its two, at the ledger's end. ``afresh``
    folds from the first message, not from a checkpoint.

    Raises:
        ConfigError: the point lies outside the ledger; the text says what it covers.
        LedgerRefused: the point is older than what the ledger still holds.
        LedgerUnavailable: the log does not answer.
    """
    bounds = await log.bounds(FACTS_STREAM)
    if point.seq is not None and point.seq > bounds.last:
        raise ConfigError(
            f"sequence {point.seq} lies after the ledger's end; its facts are "
            f"{await covered(log, FACTS_STREAM)}"
        )
    if point.time_ms is not None:
        first = await first_from(log, FACTS_STREAM, bounds.first)
        if first is not None and point.time_ms < first.stored_ms:
            raise ConfigError(
                f"{iso(point.time_ms)} lies before the ledger's beginning; its first message, "
                f"{first.seq}, was stored at {iso(first.stored_ms)}"
            )
        await _note_end(log, point.time_ms, bounds.last)
    return await fold_to(
        log,
        to_seq=point.seq,
        to_time_ms=point.time_ms,
        from_snapshot=not afresh,
        progress=progress,
    )


async def _note_end(log: LogPort, time_ms: int, last: int) -> None:
    """Say so where nobody can know what was then: after a file's end, or in the future."""
    if not isinstance(log, ArchiveLog) and time_ms <= wall_ms():
        return
    end = await first_from(log, FACTS_STREAM, last)
    if end is not None and end.stored_ms < time_ms:
        guard.note(
            f"note: {iso(time_ms)} lies after the last message, {end.seq}, of {iso(end.stored_ms)}:"
            " shown is the end"
        )
