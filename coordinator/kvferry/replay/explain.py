"""The whole story of one request, session, transfer or block, from the ledger alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import PinEnded, Requested, TransferFailed, Transferred
from kvferry.errors import CodecError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort, Stored
from kvferry.replay.blockstory import BlockSearch, as_hash, conclude_block
from kvferry.replay.conclusion import conclude
from kvferry.replay.fold import Progress
from kvferry.replay.inorder import in_order
from kvferry.replay.reading import closing
from kvferry.replay.related import Related
from kvferry.replay.sendstory import conclude_sends
from kvferry.replay.sessionstory import conclude_session, conclude_transfer
from kvferry.replay.slotstory import conclude_slots
from kvferry.replay.step import read_batch
from kvferry.replay.stories import BLOCK, SESSION, TRANSFER, Story, StoryItem, item
from kvferry.replay.timing import parts
from kvferry.replay.whys import whys

ITEMS_MAX = 5_000
PINS_MAX = 50_000
PROGRESS_MESSAGES = 256


class Selector(Protocol):
    """Says which events belong to a story."""

    transfers: set[str]

    def concerns(self, batch: Batch, entry: Entry) -> bool: ...


class Unread:
    """Messages that this version cannot read."""

    def __init__(self) -> None:
        self.count = 0
        self.why = ""

    def note(self, stored: Stored, error: CodecError) -> None:
        self.count += 1
        self.why = self.why or f"message {stored.seq}: {error}"


async def explain(log: LogPort, asked: str, *, progress: Progress | None = None) -> Story:
    """The story of a request, a session, a transfer or a block.

    Args:
        log: the ledger; no coordinator is needed.
        asked: an engine's request id, the router's or client's (``X-Request-Id``), a part of
            at least 8 characters that engines embed in theirs; a session's or a transfer's id; or
            a block's chain hash, 64 hex digits or the first 16.
        progress: told as (message, last message), once over for each pass.

    Raises:
        LedgerUnavailable: the log does not answer.
    """
    related = Related(asked)
    unread = Unread()
    is_node = False
    async for _, batch in _batches(log, FACTS_STREAM, progress, unread):
        is_node = is_node or batch.node == asked
        for entry in batch.entries:
            related.learn(entry)
    if not related.found:
        block = as_hash(asked)
        story = await _explain_block(log, asked, block, progress, unread) if block else None
        if story is not None:
            return story
    items, truncated = await _select(log, related, progress)
    if not items:
        near, sessions, transfers = related.known.near(asked)
        return Story(
            asked=asked,
            found=False,
            near=near,
            near_sessions=sessions,
            near_transfers=transfers,
            is_node=is_node,
            unread=unread.count,
            unread_why=unread.why,
        )
    causes, earlier = await whys(log, items, _batches(log, FACTS_STREAM, progress))
    items = in_order(_merged(items, earlier))
    events = [(one.node, one.body) for one in items]
    if related.kind == SESSION:
        conclusion, cure = conclude_session(asked, items)
    elif related.kind == TRANSFER:
        conclusion, cure = conclude_transfer(asked, items)
    else:
        conclusion, cure = conclude(events)
        conclusion = "; ".join(
            filter(None, (conclusion, conclude_slots(items), conclude_sends(items)))
        )
    cures = tuple(dict.fromkeys(one.cure for one in causes if one.cure))
    return Story(
        asked=asked,
        found=True,
        kind=related.kind,
        requests=tuple(sorted(related.requests or _asking(items))),
        transfers=tuple(sorted(related.transfers)),
        items=tuple(items),
        parts=parts(events),
        conclusion=conclusion,
        causes=causes,
        cure="; ".join(cures) or cure,
        truncated=truncated,
        unread=unread.count,
        unread_why=unread.why,
    )


async def _explain_block(
    log: LogPort, asked: str, block: bytes, progress: Progress | None, unread: Unread
) -> Story | None:
    search = BlockSearch(block)
    for stream in (FACTS_STREAM, BLOCKS_STREAM):
        async for _, batch in _batches(log, stream, progress):
            for entry in batch.entries:
                search.learn(batch, entry)
    if not search.found:
        return None
    items, truncated = await _select(log, search, progress)
    return Story(
        asked=asked,
        found=True,
        kind=BLOCK,
        requests=tuple(sorted(search.requests)),
        transfers=tuple(sorted(search.transfers)),
        items=tuple(items),
        parts=parts((one.node, one.body) for one in items),
        conclusion=conclude_block(search, items),
        truncated=truncated,
        unread=unread.count,
        unread_why=unread.why,
    )


def _asking(items: list[StoryItem]) -> set[str]:
    """Whose transfer it is."""
    return {
        one.body.request
        for one in items
        if isinstance(one.body, Requested | Transferred | TransferFailed)
    }


def _merged(items: list[StoryItem], more: list[StoryItem]) -> list[StoryItem]:
    known = {(one.stream, one.seq, one.text) for one in items}
    for one in more:
        if (key := (one.stream, one.seq, one.text)) not in known:
            known.add(key)
            items.append(one)
    return items


async def _select(
    log: LogPort, related: Selector, progress: Progress | None
) -> tuple[list[StoryItem], bool]:
    items: list[StoryItem] = []
    # Sources and targets write independently, so a pin's end may lie before its transfer.
    pins: dict[str, StoryItem] = {}
    for stream in (FACTS_STREAM, BLOCKS_STREAM):
        async for stored, batch in _batches(log, stream, progress):
            for entry in batch.entries:
                if related.concerns(batch, entry):
                    if len(items) < ITEMS_MAX:
                        items.append(item(stream, stored, batch, entry))
                    else:
                        return in_order(items), True
                elif isinstance(entry.event, PinEnded) and len(pins) < PINS_MAX:
                    pins[entry.event.transfer] = item(stream, stored, batch, entry)
    items += [pin for transfer, pin in pins.items() if transfer in related.transfers]
    return in_order(items), False


async def _batches(
    log: LogPort, stream: str, progress: Progress | None, unread: Unread | None = None
) -> AsyncGenerator[tuple[Stored, Batch]]:
    """The readable batches of a stream up to its present end; the others go to ``unread``."""
    last = (await log.bounds(stream)).last if progress is not None else 0
    async with closing(log.read(stream)) as messages:
        async for stored in messages:
            if progress is not None and stored.seq % PROGRESS_MESSAGES == 0:
                progress(stored.seq, last)
            try:
                batch = read_batch(stored)
            except CodecError as error:
                if unread is not None:
                    unread.note(stored, error)
                continue
            yield stored, batch
