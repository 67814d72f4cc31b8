"""Check that a point lies within what a ledger covers, and fold to it."""

from __future__ import annotations

from kvferry.cli.times import Point, iso
from kvferry.core.state import State
from kvferry.errors import ConfigError
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import first_from


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
            f"sequence {point.seq} lies after the ledger's end; its facts are messages "
            f"{bounds.first} to {bounds.last}"
        )
    if point.time_ms is not None:
        first = await first_from(log, FACTS_STREAM, bounds.first)
        if first is not None and point.time_ms < first.stored_ms:
            raise ConfigError(
                f"{iso(point.time_ms)} lies before the ledger's beginning; its first message, "
                f"{first.seq}, was stored at {iso(first.stored_ms)}"
            )
    return await fold_to(
        log,
        to_seq=point.seq,
        to_time_ms=point.time_ms,
        from_snapshot=not afresh,
        progress=progress,
    )
