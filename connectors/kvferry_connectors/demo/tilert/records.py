"""What the ledger says of one turn on a TileRT node: lease, send, answer, return, reuse."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry.core.events import (
    Requested,
    RequestEnded,
    Retained,
    SendBegan,
    SendEnded,
    SlotChanged,
    TurnEnded,
)
from kvferry.core.slots import ENDS, GRANT
from kvferry_connectors.demo.records import Records
from kvferry_connectors.demo.settings import PREFILL


@dataclass(frozen=True)
class PoolRecord:
    """All of it."""

    turn: TurnEnded
    granted: SlotChanged
    changes: tuple[str, ...]
    """What became of the lease, in order."""
    began: SendBegan
    send: SendEnded
    prefill: RequestEnded
    wanted: Requested
    kept: RequestEnded
    """The node's own word on what it generated and keeps."""
    position: int
    """Of the last message, by which all of it is known, what the node offers included."""


def pool_record(records: Records, request: str) -> PoolRecord | None:
    """The turn that the router calls ``request``, once all of it is stored.

    A turn that was tried on two nodes is told by the one that answered it.
    """
    turn = next((e for _, e in records.of(TurnEnded) if e.request == request), None)
    if turn is None:
        return None
    leases = [e for _, e in records.of(SlotChanged) if e.request == request and e.fence]
    granted = next(
        (e for e in reversed(leases) if e.change == GRANT and e.node == turn.decode_node), None
    )
    prefill = next(
        (e for f, e in records.of(RequestEnded) if f.node == PREFILL and e.external_id == request),
        None,
    )
    if granted is None or prefill is None:
        return None
    changes = tuple(e.change for e in leases if e.fence == granted.fence)
    began = next((e for _, e in records.of(SendBegan) if e.fence == granted.fence), None)
    wanted = next((e for _, e in records.of(Requested) if e.request == prefill.request), None)
    if began is None or wanted is None or not set(changes) & set(ENDS):
        return None
    send = next((e for _, e in records.of(SendEnded) if e.send == began.send), None)
    kept = next(
        (
            e
            for f, e in records.of(RequestEnded)
            if f.node == turn.decode_node and e.request == began.rid
        ),
        None,
    )
    if send is None or kept is None:
        return None
    offered = any(
        f.node == turn.decode_node and e.request == began.rid for f, e in records.of(Retained)
    )
    if kept.kept_blocks and not offered:
        return None
    position = records.facts[-1].seq
    return PoolRecord(turn, granted, changes, began, send, prefill, wanted, kept, position)


def last_lease(records: Records, node: str) -> tuple[str, tuple[str, ...]]:
    """Whose request had a node last, and what became of its lease."""
    leases = [e for _, e in records.of(SlotChanged) if e.node == node and e.fence]
    last = leases[-1]
    return last.request, tuple(e.change for e in leases if e.fence == last.fence)
