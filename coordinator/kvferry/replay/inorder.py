"""The order in which the events of a story happened, as far as it is known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.events import PinEnded, Produced, Requested, RequestEnded
from kvferry.replay.stories import StoryItem


def in_order(items: Sequence[StoryItem]) -> list[StoryItem]:
    """By store time, but no effect before its cause.

    Nodes hand their events over in batches, each lane by itself, so that a source's word on a pin
    may be stored before the request that it served, and the detail of a request after its end.

    Returns:
        The items with :attr:`StoryItem.by_ms` set.
    """
    # Sequences order one stream; between the two only the store time does.
    ordered = sorted(items, key=lambda item: (item.stored_ms, item.stream, item.seq))
    asked = {one.body.transfer: one for one in ordered if isinstance(one.body, Requested)}
    ended = {
        (one.node, one.body.request): one for one in ordered if isinstance(one.body, RequestEnded)
    }
    place = {id(one): number for number, one in enumerate(ordered)}
    keys: list[tuple[float, int]] = []
    for number, one in enumerate(ordered):
        key = float(number)
        match one.body:
            case PinEnded() if one.body.transfer in asked:
                key = max(key, place[id(asked[one.body.transfer])] + 0.5)
            case Produced() if (one.node, one.body.request) in ended:
                key = min(key, place[id(ended[one.node, one.body.request])] - 0.5)
        keys.append((key, number))
    told = [ordered[number] for _, number in sorted(keys)]
    by_ms = told[-1].stored_ms if told else 0
    for at in range(len(told) - 1, -1, -1):
        by_ms = min(by_ms, told[at].stored_ms)
        told[at] = msgspec.structs.replace(told[at], by_ms=by_ms)
    return told
