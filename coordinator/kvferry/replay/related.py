"""Which events belong to a request, a session or a transfer: by ids, offers and turns."""

from __future__ import annotations

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
    SendBegan,
    SendEnded,
    SlotChanged,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.replay.known import Known
from kvferry.replay.stories import REQUEST, SESSION, TRANSFER

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
        case Requested() | RequestEnded() | SendBegan():
            ids: tuple[str, ...] = (event.request, event.external_id)
        case TurnEnded():
            ids = (event.request, event.prefill_request, event.decode_request)
        case (
            Transferred() | TransferFailed() | Produced() | Retained() | SlotChanged() | SendEnded()
        ):
            ids = (event.request,)
        case _:
            ids = ()
    return tuple(one for one in ids if one)


def session_of(entry: Entry) -> str:
    """The session that an event names; empty if none."""
    event = entry.event
    if isinstance(event, Requested | RequestEnded | TurnEnded | Retained | SlotChanged):
        return event.session
    return ""


class Related:
    """The ids of a request, a session or a transfer, learned in two passes over the ledger.

    A turn joins the ids of both engines and is written last, so the first pass only learns; the
    second selects.
    """

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self.requests: set[str] = set()
        self.transfers: set[str] = set()
        self.offers: set[str] = set()
        self.known = Known()
        self._session = False
        """Whether the ledger names a session as it was asked for."""
        self._running: dict[str, tuple[str, str]] = {}
        """Second pass: request to node and incarnation, while its end was not met yet."""

    def learn(self, entry: Entry) -> None:
        """First pass: does this event tie ids to the request?"""
        ids = request_ids(entry)
        session = session_of(entry)
        in_session = bool(session) and session == self.asked
        self._session = self._session or in_session
        if session:
            self.known.sessions.append(session)
        if not ids:
            return
        joins = isinstance(entry.event, Requested | RequestEnded | TurnEnded | SendBegan)
        if joins:
            self.known.requests.extend(ids)
        if in_session or any(one in self.requests or names_request(self.asked, one) for one in ids):
            if joins or in_session:
                self.requests.update(ids)
            else:
                self.requests.update(one for one in ids if names_request(self.asked, one))
        self._learn_transfer(entry)

    def _learn_transfer(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, SendBegan | SendEnded) and event.send == self.asked:
            # A send is of one request, and its story is told with that.
            self.requests.update(request_ids(entry))
        if isinstance(event, Requested) and event.transfer:
            self.known.transfers.append(event.transfer)
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
            if isinstance(event, Retained) and self._session and event.session == self.asked:
                self.offers.add(event.offer)
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

    @property
    def found(self) -> bool:
        """After the first pass: does the ledger know what was asked for?"""
        return bool(self._session or self.requests or self.transfers)

    @property
    def kind(self) -> str:
        """What was asked for: ``session``, ``request`` or ``transfer``."""
        if self._session:
            return SESSION
        return REQUEST if self.requests else TRANSFER
