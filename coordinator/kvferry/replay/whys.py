"""Why the requests of a story got nothing, or less than they wanted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from kvferry.core.envelope import Batch
from kvferry.core.state import FENCED, State
from kvferry.errors import LedgerRefused
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry.replay.cures import cure_of
from kvferry.replay.direct import direct
from kvferry.replay.earlier import EarlierOffers
from kvferry.replay.fate import FENCE, HELD, LOST, REFUSED, fate
from kvferry.replay.fold import fold_to
from kvferry.replay.kept import Kept
from kvferry.replay.reading import closing
from kvferry.replay.step import step
from kvferry.replay.stories import MissCause, StoryItem
from kvferry.replay.wanted import FAILED, Wanted, wanted_in

FENCED_MS = 2_000
"""A plan was made at most so long before its request was recorded."""
FENCES_MAX = 5
"""Requests of one story of which it is looked up whether the source's record had a hole."""


async def whys(
    log: LogPort,
    items: Sequence[StoryItem],
    batches: AsyncGenerator[tuple[Stored, Batch]],
) -> tuple[tuple[MissCause, ...], list[StoryItem]]:
    """The causes, in the order in which things were wanted, and the events that tell them.

    Args:
        log: the ledger.
        items: the events of the story.
        batches: the facts from the ledger's first on; closed in any case.
    """
    async with aclosing(batches):
        wanted = wanted_in(items)
        if not wanted:
            return (), []
        offers = EarlierOffers(wanted)
        async for stored, batch in batches:
            if offers.done(stored):
                break
            offers.feed(FACTS_STREAM, stored, batch)
    causes: list[MissCause] = []
    told_by: list[StoryItem] = []
    looked = 0
    for one, kept in offers.finish():
        of_offer = fate(one, kept, offers.background)
        if of_offer is not None and of_offer.how == HELD and kept is not None:
            looked += 1
            hole = await _hole(log, one, kept) if looked <= FENCES_MAX else ""
            of_offer = _fenced(of_offer, hole) if hole else of_offer
        tells_itself = one.word == FAILED or one.word not in LOST or of_offer is None
        own = direct(one, kept) if tells_itself else None
        causes += [cause for cause in (own, of_offer) if cause is not None]
        if kept is not None and of_offer is not None:
            told_by.append(kept.begun)
            if kept.ended is not None and of_offer.ended_seq:
                told_by.append(kept.ended)
            lease = kept.lease
            if lease is not None and lease.ended is not None and of_offer.lease_ended_ms:
                told_by += [lease.begun, lease.ended]
    return tuple(causes), told_by


def _fenced(held: MissCause, hole: str) -> MissCause:
    had = held.text.partition(": ")[2].partition(";")[0]
    text = (
        f"refused: fenced: {had}, but the record of {held.source} had a hole ({hole}), so that "
        "no plan named it before it had listed anew what it holds"
    )
    cure = cure_of(REFUSED, FENCE, held.source)
    return msgspec.structs.replace(held, how=REFUSED, reason=FENCE, text=text, cure=cure)


async def _hole(log: LogPort, wanted: Wanted, kept: Kept) -> str:
    """What was missing of the source's record when it was passed over; empty if nothing was."""
    if wanted.word != "nothing_held":
        return ""  # Whoever was told where it is met no fence.
    try:
        state = await fold_to(log, to_time_ms=wanted.stored_ms - FENCED_MS)
    except LedgerRefused:
        return ""
    hole = _missing(state, kept)
    async with closing(log.read(FACTS_STREAM, start=state.position + 1)) as messages:
        async for stored in messages:
            if hole or stored.seq > wanted.seq:
                break
            step(state, stored)
            hole = _missing(state, kept)
    return hole


def _missing(state: State, kept: Kept) -> str:
    space = state.spaces.get(kept.space)
    node = space.nodes.get(kept.node) if space is not None else None
    return node.why if node is not None and node.status == FENCED else ""
