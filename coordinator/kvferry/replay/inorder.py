"""The order in which the events of a story happened, as far as it is known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.events import PinEnded, Produced, Requested, RequestEnded
from kvferry.replay.stories import StoryItem

ANSWERED = ("intact", "void")
"""How a pin ends when its target asks whether the blocks were unharmed."""


def in_order(items: Sequence[StoryItem]) -> list[StoryItem]:
    """By store time, but no effect before its cause.

    Nodes hand their events over in batches, each lane by itself, so that a source's word on a pin
    may be stored before the request that it served, or after that request's end, and the detail of
    a request after its end.

    Returns:
        The items with :attr:`StoryItem.by_ms` set.
    """
    # Sequences order one stream; between the two only the store time does.
    ordered = sorted(items, key=lambda item: (item.stored_ms, item.stream, item.seq))
    asked: dict[str, tuple[int, str]] = {}
    ended: dict[tuple[str, str], int] = {}
    for number, one in enumerate(ordered):
        match one.body:
            case Requested():
                asked[one.body.transfer] = (number, one.body.request)
            case RequestEnded():
                ended[one.node, one.body.request] = number
    keys: list[tuple[float, int]] = []
    for number, one in enumerate(ordered):
        key = float(number)
        match one.body:
            case PinEnded() if one.body.transfer in asked:
                wish, request = asked[one.body.transfer]
                # A source that answers a target's question has ended the pin: what the target then
                # does with the blocks comes later.
                if one.body.how in ANSWERED:
                    key = min(key, ended.get((ordered[wish].node, request), number) - 0.5)
                key = max(key, wish + 0.5)
            case Produced() if (one.node, one.body.request) in ended:
                key = min(key, ended[one.node, one.body.request] - 0.5)
        keys.append((key, number))
    told = [ordered[number] for _, number in sorted(keys)]
    by_ms = told[-1].stored_ms if told else 0
    for at in range(len(told) - 1, -1, -1):
        by_ms = min(by_ms, told[at].stored_ms)
        told[at] = msgspec.structs.replace(told[at], by_ms=by_ms)
    return told
