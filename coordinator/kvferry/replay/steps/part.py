"""What of a state and of its changes is told: all, or the part of certain nodes. Pure."""

from __future__ import annotations

import difflib

import msgspec

from kvferry.core.leases import is_lease
from kvferry.core.state import JOINED, OPEN, SpaceState, State
from kvferry.errors import ConfigError
from kvferry.replay.diff.change import LEARNED, LEASE, NODE, OFFER, TOTALS, TRANSFER, Change
from kvferry.replay.diff.states import compare

ALL: frozenset[str] = frozenset()
"""No node is named: everything is told."""
UNTOLD_TOTALS = ("events.", "evicted_blocks.")
"""Totals that only count what other changes tell already."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A state in a few figures. ``requests`` is None for a part: only totals know them."""

    position: int
    nodes: int
    joined: int
    offers: int
    offered_blocks: int
    leases: int
    leased_blocks: int
    transfers_open: int
    requests: int | None

    def line(self) -> str:
        """The figures in one line."""
        requests = "" if self.requests is None else f", {self.requests:,} requests ended"
        return (
            f"{self.joined:,} of {self.nodes:,} nodes joined, "
            f"{self.offers:,} offers of {self.offered_blocks:,} blocks, "
            f"{self.leases:,} leases of {self.leased_blocks:,} blocks, "
            f"{self.transfers_open:,} transfers open{requests}"
        )


def summary(state: State, nodes: frozenset[str] = ALL) -> Summary:
    """Figures over all spaces, of these nodes where any are named."""
    known = [
        node
        for space in state.spaces.values()
        for node in space.nodes.values()
        if not nodes or node.name in nodes
    ]
    offers = [
        offer
        for space in state.spaces.values()
        for offer in space.offers.values()
        if not nodes or offer.node in nodes
    ]
    leases = [offer for offer in offers if is_lease(offer)]
    return Summary(
        position=state.position,
        nodes=len(known),
        joined=sum(node.status == JOINED for node in known),
        offers=len(offers) - len(leases),
        offered_blocks=sum(o.count - o.base for o in offers if not is_lease(o)),
        leases=len(leases),
        leased_blocks=sum(o.count - o.base for o in leases),
        transfers_open=sum(
            one.phase == OPEN and (not nodes or bool({one.source, one.target} & nodes))
            for space in state.spaces.values()
            for one in space.transfers.values()
        ),
        requests=None if nodes else sum(s.totals.requests for s in state.spaces.values()),
    )


def changes(before: State, after: State, nodes: frozenset[str] = ALL) -> tuple[Change, ...]:
    """What differs, in plain words, without what was learned and without mere counts of events."""
    told = []
    for change in compare(before, after).changes:
        if change.kind == LEARNED or (
            change.kind == TOTALS and change.id.startswith(UNTOLD_TOTALS)
        ):
            continue
        if not nodes or _concerns(change, before, after, nodes):
            told.append(change)
    return tuple(told)


def named(state: State, wanted: list[str]) -> frozenset[str]:
    """The nodes that ``--node`` names.

    Raises:
        ConfigError: the state has no such node; the text names near ones.
    """
    known = sorted({name for space in state.spaces.values() for name in space.nodes})
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known[:10]
            cure = f"did you mean {', '.join(near)}?" if near else "no node had joined"
            raise ConfigError(
                f"--node {name}: there is no such node at position {state.position}; {cure}"
            )
    return frozenset(wanted)


def _concerns(change: Change, before: State, after: State, nodes: frozenset[str]) -> bool:
    for state in (after, before):
        space = state.spaces.get(change.space)
        if space is not None and _nodes_of(change, space) & nodes:
            return True
    return False


def _nodes_of(change: Change, space: SpaceState) -> set[str]:
    if change.kind == NODE:
        return {change.id}
    if change.kind in (OFFER, LEASE):
        offer = space.offers.get(change.id)
        return set() if offer is None else {offer.node}
    if change.kind == TRANSFER:
        one = space.transfers.get(change.id)
        return set() if one is None else {one.source, one.target}
    return {change.id.removeprefix("modes.").removeprefix("retentions.")}
