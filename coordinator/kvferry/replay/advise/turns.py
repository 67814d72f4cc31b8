"""Turns of a ledger: a router's turn runs on two engines, and is one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from kvferry.core.events import Requested, RequestEnded, TransferFailed, Transferred, TurnEnded

OBSERVE = "observe"
"""Why a node that only observes pulls nothing."""
TURNS_OPEN_MAX = 20_000
"""Turns whose parts are still awaited; beyond these the oldest is taken as it is."""


class Part(msgspec.Struct, kw_only=True):
    """A turn on one engine."""

    space: str
    node: str
    ended: RequestEnded
    ended_ms: int
    asked: Requested | None = None
    pull_ms: float = 0.0
    """What its transfers took."""
    pull_bytes: int = 0
    """What they brought from other nodes."""
    arrived: bool = False


class TurnRecord(msgspec.Struct, kw_only=True):
    """What the ledger says of one turn."""

    session: str = ""
    parts: list[Part] = []
    ttft_ms: float = 0.0
    """As the router saw it; 0 without a router."""
    prefill_request: str = ""
    names: set[str] = msgspec.field(default_factory=set)
    """Engines' requests that belong to it, as far as it is known."""

    def main(self) -> Part | None:
        """The engine that computed the prompt: as the router says, else the one that computed
        most of it. None where only a node is known that the prompt was sent to."""
        made = [one for one in self.parts if not one.ended.prompt_sent]
        named = [one for one in made if one.ended.request == self.prefill_request]
        return (
            named[0]
            if named
            else max(made, key=lambda part: part.ended.computed_tokens, default=None)
        )

    @property
    def began_ms(self) -> int:
        """Server time; as far as the engines told."""
        return min(one.ended_ms - int(_took_ms(one.ended)) for one in self.parts)

    @property
    def ended_ms(self) -> int:
        """Server time."""
        return max(one.ended_ms for one in self.parts)


class _Asked(msgspec.Struct):
    event: Requested
    pull_ms: float = 0.0
    pull_bytes: int = 0
    arrived: bool = False


class Turns:
    """Joins the parts of turns by the client's or router's id.

    Args:
        done: called with each turn, in the order in which turns were first heard of.
    """

    def __init__(self, done: Callable[[TurnRecord], None], open_max: int = TURNS_OPEN_MAX) -> None:
        self._done = done
        self._max = open_max
        self._open: OrderedDict[str, TurnRecord] = OrderedDict()
        self._name: dict[str, str] = {}
        """Engine's request to its turn."""
        self._asked: OrderedDict[tuple[str, str, str], _Asked] = OrderedDict()

    def asked(self, space: str, node: str, event: Requested) -> None:
        """A request was admitted; what it wanted belongs to its end."""
        key = (space, node, event.request)
        before = self._asked.pop(key, None)
        self._asked[key] = (
            _Asked(event, before.pull_ms, before.pull_bytes) if before else _Asked(event)
        )
        if len(self._asked) > self._max:
            self._asked.popitem(last=False)

    def moved(self, space: str, node: str, event: Transferred | TransferFailed) -> None:
        """A transfer of a request came to its end."""
        asked = self._asked.get((space, node, event.request))
        if asked is not None:
            asked.pull_ms += max(0.0, event.total_ms)
            asked.arrived = isinstance(event, Transferred)
            if isinstance(event, Transferred) and event.source != node:
                asked.pull_bytes += event.bytes

    def ended(self, space: str, node: str, event: RequestEnded, stored_ms: int) -> None:
        """A request ended on an engine."""
        name = self._name.get(event.request) or event.external_id or event.request
        turn = self._turn(name)
        self._name[event.request] = name
        turn.session = turn.session or event.session
        asked = self._asked.pop((space, node, event.request), None)
        part = Part(space=space, node=node, ended=event, ended_ms=stored_ms)
        if asked is not None:
            part.asked, part.arrived = asked.event, asked.arrived
            part.pull_ms, part.pull_bytes = asked.pull_ms, asked.pull_bytes
        turn.parts.append(part)
        self._bound()

    def routed(self, event: TurnEnded) -> None:
        """A router answered a turn, and says which requests were its parts."""
        turn = self._turn(event.request)
        turn.ttft_ms, turn.prefill_request = event.ttft_ms, event.prefill_request
        turn.session = turn.session or event.session
        for request in (event.prefill_request, event.decode_request):
            if not request:
                continue
            name = self._name.get(request)
            self._call(turn, request, event.request)
            if name is not None and name != event.request and name in self._open:
                other = self._open.pop(name)
                turn.parts += other.parts
                for one in other.names - turn.names:
                    self._call(turn, one, event.request)
        self._bound()

    def close(self) -> None:
        """There is nothing more to come."""
        while self._open:
            self._give(*self._open.popitem(last=False))

    def _turn(self, name: str) -> TurnRecord:
        turn = self._open.get(name)
        if turn is None:
            turn = self._open[name] = TurnRecord()
        return turn

    def _call(self, turn: TurnRecord, request: str, name: str) -> None:
        turn.names.add(request)
        self._name[request] = name

    def _bound(self) -> None:
        while len(self._open) > self._max:
            self._give(*self._open.popitem(last=False))

    def _give(self, name: str, turn: TurnRecord) -> None:
        for request in turn.names:
            if self._name.get(request) == name:
                del self._name[request]
        if turn.parts:
            self._done(turn)


def _took_ms(ended: RequestEnded) -> float:
    took_ms = max(ended.total_ms, ended.ttft_ms)
    return took_ms if 0.0 <= took_ms < 1e10 else 0.0
