"""Advice from a ledger or an exported file."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kvferry.core.state import State
from kvferry.errors import CodecError, LedgerRefused
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.study import LedgerStudy
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import between, closing
from kvferry.replay.step import read_batch

YIELD_MESSAGES = 256


async def advise_ledger(
    log: LogPort, costs: Costs, of: str, progress: Progress | None = None
) -> Report:
    """Advice from a ledger's facts up to their present end.

    Args:
        log: a ledger or an exported file; no coordinator is needed.
        costs: rates to use where the ledger has none.
        of: what is read, in words.
        progress: told now and then as (messages read, messages to read).

    Raises:
        LedgerUnavailable: the log does not answer.
    """
    bounds = await log.bounds(FACTS_STREAM)
    study = LedgerStudy(costs)
    if bounds.first > 1:
        study.continues(await _before(log, bounds.first))
    async with closing(between(log, FACTS_STREAM, bounds.first, bounds.last)) as messages:
        async for stored in messages:
            with suppress(CodecError):  # `kvferry audit` names those.
                study.add(read_batch(stored), stored.stored_ms)
            if stored.seq % YIELD_MESSAGES == 0:
                if progress is not None:
                    progress(stored.seq - bounds.first, bounds.last - bounds.first + 1)
                await asyncio.sleep(0)
    return study.report(of, bounds.last)


async def _before(log: LogPort, first: int) -> State | None:
    """The state before the first message that is left; None where no checkpoint has it."""
    try:
        return await fold_to(log, to_seq=first - 1)
    except LedgerRefused:
        return None
