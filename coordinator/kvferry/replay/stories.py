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
    by_ms: int = 0
    """It had happened by then: its store time, or that of what came after it."""


class MissCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request got nothing from others, or less than it wanted."""

    request: str
    node: str
    """Who wanted it."""
    how: str
    """``never_produced``, ``evicted``, ``evicted_late`` (while or after it was wanted),
    ``source_gone``, ``diverged``, ``refused`` (``reason`` says by what), ``still_held``,
    ``transfer_failed``; else the word of the miss, as ``too_dear`` or ``plan_late``."""
    text: str
    """The same in plain words."""
    cure: str = ""
    """What to do about it."""
    wanted_ms: int
    """When it was wanted: server store time, Unix milliseconds."""
    source: str = ""
    """Who had offered it last, or was to be read."""
    source_space: str = ""
    """The source's space, where that is another one."""
    offer: str = ""
    blocks: int = 0
    """So many of the wanted blocks were offered."""
    offered_ms: int = 0
    ended_ms: int = 0
    """When that offer ended; 0 if it had not."""
    ended_seq: int = 0
    reason: str = ""
    """Of ``evicted`` and ``source_gone`` why it ended: a reason of the event ``evicted``,
    ``node_left``, ``node_closed``, ``restarted`` or ``unlisted``. Of ``refused``: ``tenant``,
    ``space`` or ``fence``. Of ``transfer_failed``: the reason of that event."""
    before_ms: int = 0
    """For how long it had been gone when it was wanted; below 0 when it went afterwards."""
    lease_ended_ms: int = 0
    """When the last lease on it had ended; 0 if it had none or that still stood."""
    lease_reason: str = ""
    """Why that lease ended."""
    token: int | None = None
    """Of ``diverged``: the first token from which on nothing is shared."""
    differs: tuple[str, ...] = ()
    """Of another space: the components that differ, each as ``name: value here, value there``."""
    stage: str = ""
    """Of a failed transfer: ``pin``, ``read``, ``settle`` or ``use``."""
    predicted_ms: float = 0.0
    """Of ``too_dear`` and ``busy``: to move it, ``queue_ms`` included."""
    recompute_ms: float = 0.0
    queue_ms: float = 0.0
    waited_ms: float = 0.0
    """Of ``plan_late`` and ``prefill_late``: from the request's arrival until it was computed."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the ledger says about one request, session, transfer or block."""

    asked: str
    found: bool
    kind: str = REQUEST
    requests: tuple[str, ...] = ()
    """All ids under which engines and routers know it."""
    transfers: tuple[str, ...] = ()
    items: tuple[StoryItem, ...] = ()
    """In the order in which they happened, as far as it is known."""
    parts: tuple[Part, ...] = ()
    """How long each part took."""
    conclusion: str = ""
    causes: tuple[MissCause, ...] = ()
    """For requests that reused less than they could have: why. The same request has two where a
    transfer failed because of what became of its source's offer."""
    cure: str = ""
    """What to do about a miss or a failure; empty when there is nothing to cure."""
    near: tuple[str, ...] = ()
    """For an unknown id: known requests that are like it, else the latest ones."""
    near_sessions: tuple[str, ...] = ()
    near_transfers: tuple[str, ...] = ()
    is_node: bool = False
    """The unknown id is a node's name."""
    truncated: bool = False
    """There were more events than a story holds; the first are given."""
    unread: int = 0
    """Messages of the facts stream that could not be read, and may be missing from the story."""
    unread_why: str = ""
    """What is known of the first of them."""


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
