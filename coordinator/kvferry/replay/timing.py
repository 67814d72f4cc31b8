"""How long each part of a request, a transfer or a turn took, as its writers measured it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kvferry.core.events import (
    AnyEvent,
    PinEnded,
    RequestEnded,
    SendEnded,
    SlotChanged,
    TransferFailed,
    Transferred,
    TurnEnded,
)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of time on one node's monotonic clock."""

    node: str
    of: str
    """The request, or for a pin the transfer."""
    what: str
    ms: float


def parts(events: Iterable[tuple[str, AnyEvent]]) -> tuple[Part, ...]:
    """The parts in the order of their events; those that were not measured (0) are left out.

    Parts overlap: a transfer's stages lie within the pull, and the pull within the time to the
    first token.

    Args:
        events: (node, event) pairs of a story, in order.
    """
    return tuple(
        Part(node=node, of=of, what=what, ms=ms)
        for node, event in events
        for of, what, ms in _parts(event)
        if ms > 0
    )


def _parts(event: AnyEvent) -> Iterator[tuple[str, str, float]]:
    match event:
        case Transferred():
            yield event.request, f"pin on {event.source}", event.pin_ms
            yield event.request, f"read over {event.backend}", event.read_ms
            yield event.request, "settling", event.settle_ms
            yield event.request, "the transfer in all", event.total_ms
        case TransferFailed():
            what = f"a transfer from {event.source} that failed at {event.stage}"
            yield event.request, what, event.total_ms
        case PinEnded():
            yield event.transfer, f"pinned for {event.target}", event.held_ms
        case RequestEnded():
            yield event.request, "pulling", event.pull_ms
            yield event.request, "computing the prompt", event.prefill_ms
            yield event.request, "to the first token", event.ttft_ms
            yield event.request, "to the end", event.total_ms
        case TurnEnded():
            yield event.request, "to the client's first token", event.ttft_ms
            yield event.request, "to the client's last token", event.total_ms
        case SlotChanged():
            yield event.request, "waiting for a decode slot", event.waited_ms
        case SendEnded():
            yield event.request, "until the prompt was computed and sent off", event.waited_ms
            yield event.request, "until the decode node admitted it", event.admitted_ms
            yield event.request, "the send in all", event.total_ms
