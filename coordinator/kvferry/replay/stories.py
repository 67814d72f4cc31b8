"""What a story is made of."""

from __future__ import annotations

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import NAMES, AnyEvent
from kvferry.core.story import describe
from kvferry.ports.log import Stored
from kvferry.replay.timing import Part

REQUEST, SESSION, TRANSFER, BLOCK = "request", "session", "transfer", "block"
"""What a story can be of."""


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


class MissCause(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the KV that a request wanted and did not get."""

    request: str
    node: str
    """Who wanted it."""
    how: str
    """``never_produced``, ``evicted``, ``evicted_late`` (while or after it was wanted),
    ``source_gone``, ``diverged`` or ``still_held``."""
    text: str
    """The same in plain words."""
    wanted_ms: int
    """When it was wanted: server store time, Unix milliseconds."""
    source: str = ""
    """Who had offered it last."""
    offer: str = ""
    offered_ms: int = 0
    ended_ms: int = 0
    """When that offer ended; 0 if it had not."""
    ended_seq: int = 0
    reason: str = ""
    """Why it ended: a reason of ``evicted``, ``node_left``, ``node_closed``, ``restarted`` or
    ``unlisted``."""
    before_ms: int = 0
    """For how long it had been gone when it was wanted; below 0 when it went afterwards."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the ledger says about one request, session, transfer or block."""

    asked: str
    found: bool
    kind: str = REQUEST
    requests: tuple[str, ...] = ()
    """All ids under which engines and routers know it."""
    transfers: tuple[str, ...] = ()
    items: tuple[StoryItem, ...] = ()
    """In the order in which the server stored them."""
    parts: tuple[Part, ...] = ()
    """How long each part took."""
    conclusion: str = ""
    causes: tuple[MissCause, ...] = ()
    """For requests that reused less than they could have: what became of it."""
    cure: str = ""
    """What to do about a miss or a failure; empty when there is nothing to cure."""
    near: tuple[str, ...] = ()
    """For an unknown id: known requests that are like it, else the latest ones."""
    near_sessions: tuple[str, ...] = ()
    near_transfers: tuple[str, ...] = ()
    truncated: bool = False
    """There were more events than a story holds; the first are given."""


def item(stream: str, stored: Stored, batch: Batch, entry: Entry) -> StoryItem:
    """An entry of a stored batch as part of a story."""
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
