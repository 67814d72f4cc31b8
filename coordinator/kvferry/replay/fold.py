"""The state at a point of the ledger, folded afresh; needs no coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvferry.core.state import State
from kvferry.errors import LedgerRefused
from kvferry.ports.log import FACTS_STREAM, LogPort, ObjectPort, StreamBounds
from kvferry.replay.reading import closing
from kvferry.replay.snapshots import SnapshotEntry, load_newest
from kvferry.replay.step import skip_lost, step

Progress = Callable[[int, int], None]
"""Called now and then as (position, last sequence to fold)."""

PROGRESS_MESSAGES = 256


async def fold_to(
    log: LogPort,
    *,
    to_seq: int | None = None,
    to_time_ms: int | None = None,
    from_snapshot: bool = True,
    progress: Progress | None = None,
    objects: ObjectPort | None = None,
) -> State:
    """The state after the message ``to_seq``, or after all that was stored by ``to_time_ms``.

    Without either, the state at the stream's last sequence as of the call.

    Args:
        log: whose facts stream to fold.
        to_seq: last stream sequence to apply.
        to_time_ms: the server's store time, Unix milliseconds.
        from_snapshot: begin at the newest matching checkpoint at or before that point.
        progress: told every few hundred messages.
        objects: where checkpoints are; by default ``log`` itself if it keeps objects.

    Raises:
        LedgerRefused: the point lies before what the ledger still holds.
        LedgerUnavailable: the log does not answer.
    """
    bounds = await log.bounds(FACTS_STREAM)
    last = bounds.last if to_seq is None else min(to_seq, bounds.last)

    def reaches(entry: SnapshotEntry) -> bool:
        in_time = to_time_ms is None or entry.stored_ms <= to_time_ms
        # Between a point that the stream has lost and the snapshots before it there is nothing.
        whole = last >= bounds.first - 1 or entry.position == last
        return entry.position <= last and in_time and whole

    state = None
    store = objects if objects is not None else objects_of(log)
    # A stream that lost its beginning can only be continued, whatever the caller prefers.
    if store is not None and (from_snapshot or bounds.first > 1):
        found = await load_newest(log, store, bounds, reaches)
        state = found.state if found is not None else None
    if state is None:
        state = State()
        _refuse_lost(bounds, last)
    if state.position < bounds.first - 1 <= last:
        skip_lost(state, bounds.first)
    if state.position >= last:
        return state
    async with closing(log.read(FACTS_STREAM, start=state.position + 1)) as messages:
        async for stored in messages:
            if stored.seq > last or (to_time_ms is not None and stored.stored_ms > to_time_ms):
                break
            step(state, stored)
            if state.position % PROGRESS_MESSAGES == 0:
                if progress is not None:
                    progress(state.position, last)
                await asyncio.sleep(0)
            if stored.seq == last:
                break
    if progress is not None:
        progress(state.position, last)
    return state


def objects_of(log: LogPort) -> ObjectPort | None:
    """The log itself where it also keeps objects, as the JetStream and in-memory ledgers do."""
    port: object = log
    keeps = all(hasattr(port, name) for name in ("get", "put", "delete"))
    return port if keeps else None  # type: ignore[return-value]


def _refuse_lost(bounds: StreamBounds, last: int) -> None:
    if bounds.first > 1 and 0 < last < bounds.first:
        raise LedgerRefused(
            f"the ledger begins at sequence {bounds.first} and no checkpoint reaches back to "
            f"{last}; ask for {bounds.first} or later, or raise the stream's limits"
        )
