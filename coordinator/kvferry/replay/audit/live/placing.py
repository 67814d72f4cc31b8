"""Where a node's answer stands beside what the ledger has of its record."""

from __future__ import annotations

from enum import Enum

import msgspec

from kvferry.core.messages import Holdings
from kvferry.core.state import JOINED, NodeState, SpaceState


class Place(Enum):
    """Of a fold against an answer."""

    SAME = "same"
    """Both stand at the same event: they can be compared."""
    BEHIND = "behind"
    """The fold has not come so far."""
    PAST = "past"
    """The fold has more of the very same record."""
    OTHER = "other"
    """The fold believes another record, or none, of that name."""


def place(space: SpaceState, page: Holdings) -> Place:
    """Where the fold stands beside a page of an answer."""
    node = space.nodes.get(page.node)
    if node is None or (node.incarnation, node.epoch) != (page.incarnation, page.epoch):
        later = node is None or (node.incarnation == page.incarnation and node.epoch < page.epoch)
        return Place.BEHIND if later else Place.OTHER
    if node.status != JOINED:
        return Place.OTHER
    if node.facts_seq == page.seq:
        return Place.SAME
    return Place.BEHIND if node.facts_seq < page.seq else Place.PAST


class Missed(msgspec.Struct, frozen=True):
    """An answer that could not be compared."""

    why: str
    broken: bool = False
    """It breaks what the ledger says; otherwise it may merely be late."""


def otherwise(node: NodeState | None, page: Holdings) -> Missed:
    """What keeps an answer from being compared with what the ledger has."""
    if node is None:
        return Missed(f"process {page.incarnation} answers and has not joined in the ledger")
    if node.incarnation != page.incarnation:
        return Missed(
            f"{page.node} answers as process {page.incarnation}, but in the ledger it is process "
            f"{node.incarnation}",
            broken=True,
        )
    if node.epoch != page.epoch:
        return Missed(
            f"it writes epoch {page.epoch} of its record, the ledger has epoch {node.epoch}"
        )
    if node.status != JOINED:
        return Missed(
            f"the ledger believes nothing of it ({node.status}: {node.why}), and it has not begun "
            "anew; a coordinator would ask it to"
        )
    return Missed(
        f"it has written {page.seq} events of epoch {page.epoch}, of which the ledger has stored "
        f"{node.facts_seq}"
    )
