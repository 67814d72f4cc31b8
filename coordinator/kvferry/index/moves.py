"""What moves now in each space: the transfers that the fold shows as open, and plans just given."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.core.applied import Applied
from kvferry.core.cost import link_cost
from kvferry.core.events import (
    Inventory,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Requested,
    TransferFailed,
    Transferred,
)
from kvferry.core.inflight import Flow, InFlight, service_ms
from kvferry.core.state import OPEN, SpaceState, State, TransferState
from kvferry.index.folded import Folded

_AGAIN = (NodeJoined, NodeLeft, NodeClosed, Inventory)
"""After these many transfers may have ended or opened at once."""


class Moves:
    """Follows a fold. Times are of one clock."""

    def __init__(self, folded: Folded, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fold = folded
        self._clock = clock
        self._spaces: dict[str, InFlight] = {}
        self._folded: State | None = None
        folded.observe(self._follow)

    def now_ms(self) -> float:
        """The present on the clock of all flows."""
        return self._clock() * 1000.0

    def of(self, space: str) -> InFlight:
        """What moves in one space."""
        state = self._fold.state
        if self._folded is not state:
            self._folded = state
            self._spaces.clear()
        known = self._spaces.get(space)
        if known is None:
            known = self._spaces[space] = InFlight()
            if space in state.spaces:
                self._take_open(state.spaces[space], known)
        return known

    def _follow(self, applied: list[Applied]) -> None:
        """The fold's observer."""
        if not applied:
            return
        name = applied[0].space
        moves, space = self.of(name), self._fold.state.spaces[name]
        for one in applied:
            event = one.entry.event
            if isinstance(event, Requested):
                transfer = space.transfers.get(event.transfer)
                if transfer is not None and _moves(transfer):
                    moves.begin(event.transfer, self._flow(space, transfer))
                else:
                    moves.decline(one.node, event.request)
            elif isinstance(event, Transferred | TransferFailed):
                moves.end(event.transfer)
            elif isinstance(event, _AGAIN):
                self._take_open(space, moves)

    def _take_open(self, space: SpaceState, moves: InFlight) -> None:
        """Come to what the state says, whatever was missed."""
        now_open = {t.transfer: t for t in space.transfers.values() if _moves(t)}
        for key in moves.keys():  # noqa: SIM118 -- a copy: it changes meanwhile
            flow = moves.get(key)
            if flow is not None and not flow.promised and key not in now_open:
                moves.end(key)
        for key, transfer in now_open.items():
            if moves.get(key) is None:
                moves.begin(key, self._flow(space, transfer))

    def _flow(self, space: SpaceState, transfer: TransferState) -> Flow:
        source, target = space.nodes.get(transfer.source), space.nodes.get(transfer.target)
        link, size_bytes = None, 0
        if source is not None and target is not None and target.block_size > 0:
            local = transfer.local_tokens // target.block_size
            size_bytes = max(0, transfer.granted - local) * source.block_bytes
            link = link_cost(space.rates, source.name, target.name, source.backends)
        alone_ms = max(0.0, transfer.predicted_ms - transfer.queue_ms)
        return Flow(
            source=transfer.source,
            target=transfer.target,
            begun_ms=self.now_ms(),
            service_ms=alone_ms or service_ms(link, size_bytes),
            blocks=transfer.granted,
            size_bytes=size_bytes,
            upto=transfer.upto,
            request=transfer.request,
        )


def _moves(transfer: TransferState) -> bool:
    """Whether it uses a link now: not what a node loads from its own host tier."""
    return transfer.phase == OPEN and transfer.source != transfer.target
