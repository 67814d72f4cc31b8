"""How long KV was offered, what ended it, and whether its session came back too late."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from kvferry.core.events import Evicted, NodeClosed, NodeLeft, Retained
from kvferry.replay.advise.report import Kept
from kvferry.replay.advise.spread import Values

OFFERS_MAX = 200_000
SESSIONS_MAX = 100_000
SUPERSEDED, NODE_LEFT = "superseded", "node_left"
"""A superseded offer's KV goes on in another."""

Key = tuple[str, str, str]
"""Space, node, offer."""


class _Offer(msgspec.Struct):
    since_ms: int
    session: str


class _Session(msgspec.Struct):
    live: set[Key] = msgspec.field(default_factory=set)
    reason: str = ""
    gone_ms: int = 0


class Offers:
    """Offers from their beginning to their end, with the sessions that they were of."""

    def __init__(self) -> None:
        self._open: OrderedDict[Key, _Offer] = OrderedDict()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._kept: dict[str, Values] = {}
        self._early: dict[str, Values] = {}

    def retained(self, space: str, node: str, event: Retained, at_ms: int) -> None:
        """A run is offered, or goes on being offered."""
        key = (space, node, event.offer)
        if key in self._open:
            return
        self._open[key] = _Offer(at_ms, event.session)
        if event.session:
            session = self._session(event.session)
            session.live.add(key)
            session.reason = ""
        if len(self._open) > OFFERS_MAX:
            oldest, offer = self._open.popitem(last=False)
            self._of_session(offer, oldest, "", at_ms)

    def evicted(self, space: str, node: str, event: Evicted, at_ms: int) -> None:
        """An offer ends, unless some of it stays."""
        if event.offer and event.keep == 0:
            self._end((space, node, event.offer), event.reason, at_ms)

    def left(self, space: str, event: NodeLeft | NodeClosed, writer: str, at_ms: int) -> None:
        """A node went, and with it what it offered."""
        node = event.node if isinstance(event, NodeLeft) else writer
        for key in [one for one in self._open if one[:2] == (space, node)]:
            self._end(key, NODE_LEFT, at_ms)

    def came_back(self, session: str, at_ms: int) -> None:
        """A session's next turn began."""
        known = self._sessions.get(session)
        if known is not None and not known.live and known.reason:
            early = self._early.setdefault(known.reason, Values())
            early.add(max(0, at_ms - known.gone_ms) / 1_000.0)
            known.reason = ""

    def rows(self) -> tuple[Kept, ...]:
        """By reason, the most frequent first."""
        return tuple(
            Kept(
                reason=reason,
                offers=kept.count,
                kept_s=kept.spread(),
                before_next_use=self._early[reason].count if reason in self._early else 0,
                too_early_s=self._early[reason].at(0.5) if reason in self._early else 0.0,
            )
            for reason, kept in sorted(
                self._kept.items(), key=lambda item: (-item[1].count, item[0])
            )
        )

    def _session(self, name: str) -> _Session:
        found = self._sessions.pop(name, None) or _Session()
        self._sessions[name] = found
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return found

    def _end(self, key: Key, reason: str, at_ms: int) -> None:
        offer = self._open.pop(key, None)
        if offer is None:
            return
        if reason != SUPERSEDED:
            self._kept.setdefault(reason, Values()).add(max(0, at_ms - offer.since_ms) / 1_000.0)
        self._of_session(offer, key, "" if reason == SUPERSEDED else reason, at_ms)

    def _of_session(self, offer: _Offer, key: Key, reason: str, at_ms: int) -> None:
        session = self._sessions.get(offer.session)
        if session is None:
            return
        session.live.discard(key)
        if not session.live:
            session.reason, session.gone_ms = reason, at_ms
