"""Bugs that take what one process of a node said for the word of another one of its lives."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.bugs.bug import Bug, Patch
from tests.sim.bugs.ledger import WHOLE

from kvferry.core import apply, evolve_nodes
from kvferry.core.events import FACTS
from kvferry.core.state import LaneState
from kvferry.node.agent.inbox import Inbox
from kvferry.node.export.desk import PinDesk
from kvferry.node.peers.client import PeerClient
from kvferry_connectors.vllm.pulls import Pulls

RESTARTED = {
    "fixed_ports": "true",
    "fault_kinds": '["stop", "kill"]',
    "faults_per_s": "4.0",
    "think_s": "0.3",
    "clients": "5",
    "blocks": "96",
    "read_fails": "0",
    "read_hangs": "0",
    "abort_share": "0",
    "overlap_share": "0",
}
"""Processes come and go under one address, with hints of their earlier lives on the way."""
TWINS = {
    **WHOLE,
    "coordinators": "2",
    "ledger_loses": "0.0",
    "fault_kinds": '["twin"]',
    "faults_per_s": "2.0",
    "clients": "5",
    "think_s": "0.02",
}
"""Two processes of one name live at a time, and the older one does not know yet."""


def _pinned_in_a_later_life() -> tuple[Patch, ...]:
    """Whoever lives at the address now answers for the process that was meant. A source looks at
    it too, so that neither alone is missed."""

    def ask(self: Any, peer: Any, address: str, frame: Any, deadline_s: float, _: str) -> Any:
        return shipped(self, peer, address, frame, deadline_s, "")

    def malformed(self: Any, frame: Any) -> Any:
        return looked(self, msgspec.structs.replace(frame, incarnation=""))

    shipped, looked = PeerClient._ask, PinDesk._malformed
    return Patch(PeerClient, "_ask", ask), Patch(PinDesk, "_malformed", malformed)


def _transfers_counted_anew() -> tuple[Patch, ...]:
    """Each life of a node counts its transfers from 1 under the node's name."""

    def begun(self: Any, options: Any, *given: Any, **more: Any) -> None:
        shipped(self, options, *given, **more)
        self._prefix = options.node

    shipped: Any = Pulls.__init__
    return (Patch(Pulls, "__init__", begun),)


def _control_of_another_life() -> tuple[Patch, ...]:
    """A message that the coordinator meant for another process is taken as well."""

    async def control(self: Any, subject: str, data: bytes, reply: Any) -> None:
        decode = self._decode
        self._decode = lambda raw: msgspec.structs.replace(decode(raw), incarnation="")
        try:
            await shipped(self, subject, data, reply)
        finally:
            self._decode = decode

    shipped = Inbox.control
    return (Patch(Inbox, "control", control),)


def _facts_of_an_earlier_life() -> tuple[Patch, ...]:
    """What a superseded process still writes counts as the living one's."""

    def lane_of(state: Any, batch: Any) -> Any:
        lane = found(state, batch)
        if lane is None and batch.seq > 1 and _superseded(state, batch):
            return LaneState(incarnation=batch.incarnation, epoch=batch.epoch, last=batch.seq - 1)
        return lane

    def fold(state: Any, applied: Any) -> bool:
        if applied.lane == FACTS and _superseded(state, applied):
            node = state.space(applied.space).nodes[applied.node]
            applied.incarnation, applied.epoch = node.incarnation, node.epoch
        return bool(folded(state, applied))

    found, folded = apply.lane_of, apply.fold
    return Patch(apply, "lane_of", lane_of), Patch(apply, "fold", fold)


def _superseded(state: Any, of: Any) -> bool:
    node = state.space(of.space).nodes.get(of.node)
    return node is not None and of.incarnation in node.superseded


def _offers_outlive_their_process() -> tuple[Patch, ...]:
    """What the process before offered stands as what the next one has."""
    return (Patch(evolve_nodes, "end_offers", lambda space, node: ()),)


LIFE_BUGS = (
    Bug("pinned-in-a-later-life", "lives", _pinned_in_a_later_life, knobs=RESTARTED, seeds=24),
    Bug("transfers-counted-anew", "lives", _transfers_counted_anew, knobs=RESTARTED),
    Bug("control-of-another-life", "ledger", _control_of_another_life, "ledger", TWINS),
    Bug("facts-of-an-earlier-life", "ledger", _facts_of_an_earlier_life, "ledger", TWINS),
    Bug("offers-outlive-their-process", "fold", _offers_outlive_their_process, "ledger", TWINS),
)
