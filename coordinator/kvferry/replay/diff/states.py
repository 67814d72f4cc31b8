"""Two folded states compared, thing by thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from kvferry.core.digest import digest
from kvferry.core.leases import is_lease
from kvferry.core.state import (
    ENDED_TRANSFERS_MAX,
    OPEN,
    OfferState,
    SpaceState,
    State,
    TransferState,
)
from kvferry.replay.diff import views
from kvferry.replay.diff.change import (
    ADDED,
    CHANGED,
    KINDS,
    LEARNED,
    LEASE,
    NODE,
    OFFER,
    POLICY,
    REMOVED,
    SLOT,
    SPACE,
    TOTALS,
    TRANSFER,
    Change,
    Diff,
    Fields,
    Side,
    differing,
    in_words,
)

T = TypeVar("T")


def compare(a: State, b: State, *, source_a: str = "A", source_b: str = "B") -> Diff:
    """What differs between two states: spaces, policy, nodes, offers, leases, transfers, slots,
    totals.

    Positions and store times do not count: an imported ledger is the same as the one that was
    exported. Transfers that ended and that only one state still remembers do not count either
    where the other one's memory of ended ones is full.

    Args:
        a, b: any two states.
        source_a, source_b: what to call where they come from.
    """
    changes = [
        change
        for name in sorted(a.spaces.keys() | b.spaces.keys())
        for change in _of_space(name, a.spaces.get(name), b.spaces.get(name))
    ]
    order = {kind: at for at, kind in enumerate(KINDS)}
    changes.sort(key=lambda one: (one.space, order[one.kind]))
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.kind] = counts.get(change.kind, 0) + 1
    return Diff(
        same=not changes,
        a=Side(source=source_a, position=a.position, digest=digest(a)),
        b=Side(source=source_b, position=b.position, digest=digest(b)),
        counts=counts,
        changes=tuple(changes),
    )


def _of_space(name: str, a: SpaceState | None, b: SpaceState | None) -> Iterator[Change]:
    if a is None or b is None:
        change = ADDED if a is None else REMOVED
        yield Change(space=name, kind=SPACE, id=name, change=change, text=f"space {name}")
    one, other = a or SpaceState(), b or SpaceState()
    yield from _whole(name, POLICY, views.policy(one), views.policy(other))
    yield from _each(name, NODE, one.nodes, other.nodes, views.node, views.node_words)
    yield from _each(name, OFFER, one.offers, other.offers, views.offer, views.offer_words)
    yield from _each(
        name,
        TRANSFER,
        _shared(one, other),
        _shared(other, one),
        views.transfer,
        views.transfer_words,
    )
    slots, others = one.slots.nodes, other.slots.nodes
    yield from _each(name, SLOT, slots, others, views.slot, views.slot_words)
    totals = msgspec.to_builtins(one.totals), msgspec.to_builtins(other.totals)
    yield from _whole(name, TOTALS, *totals)
    yield from _whole(name, LEARNED, views.learned(one), views.learned(other))


def _shared(space: SpaceState, other: SpaceState) -> dict[str, TransferState]:
    """The transfers of a space that the other one could know too."""
    if len(other.ended) < ENDED_TRANSFERS_MAX:
        return space.transfers
    return {
        transfer: one
        for transfer, one in space.transfers.items()
        if one.phase == OPEN or transfer in other.transfers
    }


def _whole(space: str, kind: str, a: Fields, b: Fields) -> Iterator[Change]:
    for name, values in differing(a, b).items():
        fields = {name: values}
        yield Change(
            space=space, kind=kind, id=name, change=CHANGED, fields=fields, text=in_words(fields)
        )


def _each(
    space: str,
    kind: str,
    a: Mapping[str, T],
    b: Mapping[str, T],
    view: Callable[[T], Fields],
    words: Callable[[T], str],
) -> Iterator[Change]:
    for name in (*a, *(name for name in b if name not in a)):
        one, other = a.get(name), b.get(name)
        latest = other if other is not None else one
        told = LEASE if isinstance(latest, OfferState) and is_lease(latest) else kind
        if one is not None and other is not None:
            fields = differing(view(one), view(other))
            if fields:
                text = f"{told} {name}: {in_words(fields)}"
                yield Change(
                    space=space, kind=told, id=name, change=CHANGED, fields=fields, text=text
                )
        elif latest is not None:
            change = ADDED if one is None else REMOVED
            text = f"{told} {name}: {words(latest)}"
            yield Change(space=space, kind=told, id=name, change=change, text=text)
