"""The whole story of one request, from the ledger alone."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import NAMES, AnyEvent, PinEnded
from kvferry.core.story import describe
from kvferry.errors import CodecError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort, Stored
from kvferry.replay.conclusion import conclude
from kvferry.replay.reading import closing
from kvferry.replay.related import Related
from kvferry.replay.step import read_batch

NEAR_MAX = 5
ITEMS_MAX = 5_000
PINS_MAX = 50_000


class StoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a story."""

    stream: str
    seq: int
    stored_ms: int
    space: str
    node: str
    lane: str
    event: str
    text: str
    """The event in plain words."""
    body: AnyEvent


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the ledger says about one request."""

    asked: str
    found: bool
    requests: tuple[str, ...] = ()
    """All ids under which engines and routers know it."""
    transfers: tuple[str, ...] = ()
    items: tuple[StoryItem, ...] = ()
    """In the order in which the server stored them."""
    conclusion: str = ""
    cure: str = ""
    """What to do about a miss or a failure; empty when there is nothing to cure."""
    near: tuple[str, ...] = ()
    """For an unknown id: known ids that are like it, else the latest ones."""
    truncated: bool = False
    """There were more than :data:`ITEMS_MAX` events; the first are given."""


async def explain(log: LogPort, request_id: str) -> Story:
    """The story of a request.

    Args:
        log: the ledger; no coordinator is needed.
        request_id: an engine's request id, the router's or client's (``X-Request-Id``), a part of
            at least 8 characters that engines embed in theirs, or a transfer id.

    Raises:
        LedgerUnavailable: the log does not answer.
    """
    related = Related(request_id)
    async for _, batch in _batches(log, FACTS_STREAM):
        for entry in batch.entries:
            related.learn(entry)
    items, truncated = await _select(log, related)
    if not items:
        return Story(asked=request_id, found=False, near=_near(request_id, related.known()))
    conclusion, cure = conclude([(item.node, item.body) for item in items])
    return Story(
        asked=request_id,
        found=True,
        requests=tuple(sorted(related.requests)),
        transfers=tuple(sorted(related.transfers)),
        items=tuple(items),
        conclusion=conclusion,
        cure=cure,
        truncated=truncated,
    )


async def _select(log: LogPort, related: Related) -> tuple[list[StoryItem], bool]:
    items: list[StoryItem] = []
    # Sources and targets write independently, so a pin's end may lie before its transfer.
    pins: dict[str, StoryItem] = {}
    for stream in (FACTS_STREAM, BLOCKS_STREAM):
        async for stored, batch in _batches(log, stream):
            for entry in batch.entries:
                if related.concerns(batch, entry):
                    if len(items) < ITEMS_MAX:
                        items.append(_item(stream, stored, batch, entry))
                    else:
                        return _ordered(items), True
                elif isinstance(entry.event, PinEnded) and len(pins) < PINS_MAX:
                    pins[entry.event.transfer] = _item(stream, stored, batch, entry)
    items += [pin for transfer, pin in pins.items() if transfer in related.transfers]
    return _ordered(items), False


def _ordered(items: list[StoryItem]) -> list[StoryItem]:
    # Sequences order one stream; between the two only the store time does.
    return sorted(items, key=lambda item: (item.stored_ms, item.stream, item.seq))


def _item(stream: str, stored: Stored, batch: Batch, entry: Entry) -> StoryItem:
    return StoryItem(
        stream=stream,
        seq=stored.seq,
        stored_ms=stored.stored_ms,
        space=batch.space,
        node=batch.node,
        lane=batch.lane,
        event=NAMES[type(entry.event)],
        text=describe(batch.node, entry.event),
        body=entry.event,
    )


async def _batches(log: LogPort, stream: str) -> AsyncIterator[tuple[Stored, Batch]]:
    """The readable batches of a stream up to its present end; others are `status`'s business."""
    async with closing(log.read(stream)) as messages:
        async for stored in messages:
            try:
                batch = read_batch(stored)
            except CodecError:
                continue
            yield stored, batch


def _near(asked: str, known: list[str]) -> tuple[str, ...]:
    like = difflib.get_close_matches(asked, known, n=NEAR_MAX, cutoff=0.5)
    return tuple(like) if like else tuple(reversed(known[-NEAR_MAX:]))
