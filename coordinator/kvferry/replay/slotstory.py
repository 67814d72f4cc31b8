"""What the decode slot of a TileRT node had to do with a request, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.core.events import SlotChanged
from kvferry.core.slots import ABANDONED, CANCELLED, CONFIRMED, ENDS, GRANT, IDLE, REFUSED, REPLIED
from kvferry.replay.stories import StoryItem
from kvferry.replay.words import duration

_ENDED = {
    REPLIED: "decode had replied",
    CANCELLED: "the node confirmed the cancel",
    REFUSED: "it was given back unused",
    IDLE: "the node was seen idle",
}


def conclude_slots(items: Iterable[StoryItem]) -> str:
    """How each lease in a story was got and how it ended; empty without any."""
    told: dict[int, list[str]] = {}
    since_ms: dict[int, int] = {}
    running: set[int] = set()
    for one in items:
        event = one.body
        if not isinstance(event, SlotChanged) or not event.fence:
            continue
        part = _part(event, duration(max(0, one.stored_ms - since_ms.get(event.fence, 0))))
        if part:
            told.setdefault(event.fence, []).append(part)
            since_ms[event.fence] = one.stored_ms
            running.add(event.fence)
        if event.change in ENDS:
            running.discard(event.fence)
    for fence in running:
        told[fence].append("and that lease has not ended")
    return "; ".join(", ".join(parts) for parts in told.values())


def _part(event: SlotChanged, after: str) -> str:
    why = f" ({event.why})" if event.why else ""
    if event.change == GRANT:
        waited = f" after {duration(event.waited_ms)} of waiting" if event.waited_ms else ""
        return f"it was lent decode node {event.node}{waited} (fence {event.fence})"
    if event.change == CONFIRMED:
        return f"decoding began {after} later"
    if event.change == ABANDONED:
        return f"its router lost sight of it {after} later{why}"
    if event.change in ENDS:
        return f"and {after} later {_ENDED[event.change]}{why}"
    return ""
