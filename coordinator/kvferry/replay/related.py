"""Which events belong to one request: by its ids, its transfers, its offers and its turn."""

from __future__ import annotations

from collections import deque

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    Inventory,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
    TurnEnded,
)

KNOWN_MAX = 20_000
"""Request ids that are remembered to suggest near ones."""
EMBEDDED_CHARS_MIN = 8
"""A shorter id must match in full, for it would be found inside foreign ones."""


def names_request(asked: str, known: str) -> bool:
    """Whether ``known`` is the id that was asked for, or an engine's dressed-up form of it.

    vLLM makes ``cmpl-<X-Request-Id>-0`` and the like of the client's id.
    """
    return asked == known or (len(asked) >= EMBEDDED_CHARS_MIN and asked in known)


def request_ids(entry: Entry) -> tuple[str, ...]:
    """Every request id that an event names."""
    event = entry.event
    match event:
        case Requested() | RequestEnded():
            ids: tuple[str, ...] = (event.request, event.external_id)
        case TurnEnded():
            ids = (event.request, event.prefill_request, event.decode_request)
        case Transferred() | TransferFailed() | Produced() | Retained():
            ids = (event.request,)
        case _:
            ids = ()
    return tuple(one for one in ids if one)


class Related:
    """The ids of one request, learned event by event, in two passes over the ledger.

    A turn joins the ids of both engines and is written last, so the first pass only learns; the
    second selects.
    """

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self.requests: set[str] = set()
        self.transfers: set[str] = set()
        self.offers: set[str] = set()
        self._known: deque[str] = deque(maxlen=KNOWN_MAX)
        self._running: dict[str, tuple[str, str]] = {}
        """Second pass: request to node and incarnation, while its end was not met yet."""

    def learn(self, entry: Entry) -> None:
        """First pass: does this event tie ids to the request?"""
        ids = request_ids(entry)
        if not ids:
            return
        joins = isinstance(entry.event, Requested | RequestEnded | TurnEnded)
        if joins:
            self._known.extend(ids)
        if any(one in self.requests or names_request(self.asked, one) for one in ids):
            if joins:
                self.requests.update(ids)
            else:
                self.requests.update(one for one in ids if names_request(self.asked, one))
        self._learn_transfer(entry)

    def _learn_transfer(self, entry: Entry) -> None:
        event = entry.event
        if (
            isinstance(event, Requested | Transferred | TransferFailed)
            and event.transfer
            and (event.request in self.requests or event.transfer == self.asked)
        ):
            self.transfers.add(event.transfer)

    def concerns(self, batch: Batch, entry: Entry) -> bool:
        """Second pass: is this event of the batch part of the story?"""
        event = entry.event
        self._learn_transfer(entry)
        if any(one in self.requests for one in request_ids(entry)):
            if isinstance(event, Retained):
                self.offers.add(event.offer)
            elif isinstance(event, Requested):
                self._running[event.request] = (batch.node, batch.incarnation)
            elif isinstance(event, RequestEnded):
                self._running.pop(event.request, None)
            return True
        if isinstance(event, NodeLeft | NodeClosed | NodeJoined):
            return self._ends_a_life(batch, event)
        if isinstance(event, Retained | Evicted):
            return event.offer in self.offers
        if isinstance(event, Requested | Transferred | TransferFailed):
            return event.transfer in self.transfers
        if isinstance(event, PinEnded):
            return event.transfer in self.transfers
        if isinstance(event, LinkProbed):
            return entry.cause in self.transfers
        if isinstance(event, Inventory):
            return any(one.transfer in self.transfers for one in event.transfers)
        return False

    def _ends_a_life(self, batch: Batch, event: AnyEvent) -> bool:
        """Whether the event says that a process which still ran a request of ours is gone."""
        for node, incarnation in self._running.values():
            match event:
                case NodeLeft() if (event.node, event.incarnation) == (node, incarnation):
                    return True
                case NodeClosed() if (batch.node, event.incarnation) == (node, incarnation):
                    return True
                case NodeJoined() if batch.node == node and event.incarnation != incarnation:
                    return True
        return False

    def known(self) -> list[str]:
        """Request ids of the ledger, the latest last."""
        return list(dict.fromkeys(self._known))
