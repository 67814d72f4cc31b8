"""How transfers change: requested, transferred, transfer_failed, pin_ended, and ends by loss."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kvferry.core.applied import Applied
from kvferry.core.cost import LinkCost, pair_key, rate_key
from kvferry.core.events import (
    LinkProbed,
    OpenTransfer,
    PinEnded,
    Requested,
    TransferFailed,
    Transferred,
)
from kvferry.core.state import (
    DONE,
    EARLY_PINS_MAX,
    ENDED_TRANSFERS_MAX,
    FAILED,
    OPEN,
    RATES_MAX,
    LinkChoice,
    NodeState,
    SpaceState,
    TransferState,
)
from kvferry.core.totals import add, bump
from kvferry.core.trials import passed_over, taken

LOST = "lost"
NODE_LEFT = "node_left"
TOO_DEAR = "too_dear"
HANDOVER, HINT = "handover", "hint"
PROBE_MS = 10.0
"""A probed rate counts as one transfer of this length."""


def requested(space: SpaceState, node: NodeState, applied: Applied, event: Requested) -> None:
    """A transfer opens, or a miss is counted."""
    if not event.transfer:
        if event.miss:
            bump(space.totals.misses, event.miss.partition("@")[0])
        if event.miss == TOO_DEAR and event.source and not event.weighed_from:
            passed_over(space.trials, pair_key(event.source, node.name), event.recompute_ms)
        return
    if event.transfer in space.transfers:
        bump(space.totals.repeated, "requested")
        return
    pair = pair_key(event.source, node.name)
    if event.basis != HINT:  # Whoever followed a hint has weighed nothing.
        parts = event.wanted / event.granted if event.granted > 0 else 1.0
        taken(space.trials, pair, event.predicted_ms, event.recompute_ms, parts)
    _open(
        space,
        TransferState(
            transfer=event.transfer,
            request=event.request,
            target=node.name,
            target_incarnation=node.incarnation,
            source=event.source,
            source_incarnation=event.source_incarnation,
            backend=event.backend,
            basis=event.basis,
            wanted=event.wanted,
            granted=event.granted,
            predicted_ms=event.predicted_ms,
            recompute_ms=event.recompute_ms,
            queue_ms=event.queue_ms,
            upto=event.upto,
            local_tokens=event.local_tokens,
            requested_ms=applied.position.stored_ms,
        ),
    )


def transferred(space: SpaceState, node: NodeState, applied: Applied, event: Transferred) -> None:
    """A transfer ends well; its link's rate is learned."""
    transfer = _open_of(space, node, event.transfer, "transferred")
    if transfer is None:
        return
    transfer.backend = event.backend or transfer.backend
    transfer.bytes, transfer.tokens, transfer.count = event.bytes, event.tokens, event.count
    transfer.total_ms, transfer.read_ms = event.total_ms, event.read_ms
    transfer.moved_ms = event.pin_ms + event.read_ms + event.settle_ms
    totals = space.totals
    if transfer.granted and event.start + event.count > transfer.granted:
        bump(totals.strays, "transferred_beyond_granted")
    totals.bytes_moved = add(totals.bytes_moved, event.bytes)
    _end(space, transfer, DONE, "", applied.position.stored_ms)
    if transfer.basis == HANDOVER:
        return  # It waited for the source to compute, which says nothing about the link.
    key = rate_key(event.source, node.name, event.backend)
    learn_link(space.rates, key, event.bytes, _alone_ms(transfer))


def transfer_failed(
    space: SpaceState, node: NodeState, applied: Applied, event: TransferFailed
) -> None:
    """A transfer ends without use."""
    transfer = _open_of(space, node, event.transfer, "transfer_failed")
    if transfer is None:
        return
    transfer.stage, transfer.total_ms = event.stage, event.total_ms
    _end(space, transfer, FAILED, event.reason or "error", applied.position.stored_ms)


def pin_ended(space: SpaceState, node: NodeState, applied: Applied, event: PinEnded) -> None:
    """The source's view of a pin's end; it may come before the target's ``requested``."""
    totals = space.totals
    if event.granted <= 0:  # it never held a block; the same transfer may be granted later
        totals.pins_refused = add(totals.pins_refused, 1)
        return
    transfer = space.transfers.get(event.transfer)
    if event.transfer in space.early_pins or (transfer is not None and transfer.pin):
        bump(totals.repeated, "pin_ended")
        return
    if transfer is not None and transfer.source != node.name:
        bump(totals.strays, "pin_ended")
        return
    totals.pins_ended = add(totals.pins_ended, 1)
    how = event.how or "closed"
    if transfer is not None:
        transfer.pin = how
        return
    if len(space.early_pins) >= EARLY_PINS_MAX:
        del space.early_pins[next(iter(space.early_pins))]
    space.early_pins[event.transfer] = how


def link_probed(space: SpaceState, node: NodeState, applied: Applied, event: LinkProbed) -> None:
    """A first idea of a link that has carried nothing yet; real transfers know better. And the
    backend that its target has chosen."""
    if event.why:
        pair = pair_key(event.peer, node.name)
        if pair not in space.choices and len(space.choices) >= RATES_MAX:
            del space.choices[next(iter(space.choices))]
        space.choices[pair] = LinkChoice(event.backend, event.why)
    key = rate_key(event.peer, node.name, event.backend)
    known = space.rates.get(key)
    if known is not None and known.n:
        return
    bytes_per_ms = event.gb_per_s * 1e6
    learn_link(space.rates, key, bytes_per_ms * PROBE_MS, PROBE_MS + max(0.0, event.floor_ms))


def fail_open(space: SpaceState, target: str, stored_ms: int) -> None:
    """The target is gone: what it had open ends. Where it was only the source, the target says."""
    for transfer in _open_at(space, target):
        _end(space, transfer, FAILED, NODE_LEFT, stored_ms)


def fail_unlisted(
    space: SpaceState, node: NodeState, listed: Collection[str], stored_ms: int
) -> None:
    """End what the target's inventory no longer lists: its outcome got lost."""
    for transfer in _open_at(space, node.name):
        if transfer.transfer not in listed:
            _end(space, transfer, FAILED, LOST, stored_ms)


def open_listed(
    space: SpaceState, node: NodeState, listed: Iterable[OpenTransfer], stored_ms: int
) -> None:
    """Open what the target's inventory lists and nobody has heard of: its request got lost."""
    for move in listed:
        if move.transfer and move.transfer not in space.transfers:
            opened = TransferState(
                transfer=move.transfer,
                request=move.request,
                target=node.name,
                target_incarnation=node.incarnation,
                source=move.source,
                wanted=move.wanted,
                granted=move.granted,
                requested_ms=stored_ms,
            )
            _open(space, opened)


def _open(space: SpaceState, transfer: TransferState) -> None:
    transfer.pin = space.early_pins.pop(transfer.transfer, "")
    space.transfers[transfer.transfer] = transfer
    totals = space.totals
    totals.transfers_opened = add(totals.transfers_opened, 1)
    if transfer.granted > 0:
        totals.pins_opened = add(totals.pins_opened, 1)


def _open_at(space: SpaceState, target: str) -> list[TransferState]:
    return [t for t in space.transfers.values() if t.phase == OPEN and t.target == target]


def _open_of(space: SpaceState, node: NodeState, transfer: str, event: str) -> TransferState | None:
    """The open transfer that ``event`` is about, or None after counting why there is none."""
    known = space.transfers.get(transfer)
    if known is None or known.target != node.name:
        bump(space.totals.strays, event)
        return None
    if known.phase != OPEN:
        bump(space.totals.repeated, event)
        return None
    return known


def _end(space: SpaceState, transfer: TransferState, phase: str, reason: str, at_ms: int) -> None:
    transfer.phase, transfer.reason, transfer.ended_ms = phase, reason, at_ms
    totals = space.totals
    if phase == DONE:
        totals.transfers_done = add(totals.transfers_done, 1)
    else:
        totals.transfers_failed = add(totals.transfers_failed, 1)
        bump(totals.failures, reason)
    space.ended.append(transfer.transfer)
    if len(space.ended) > ENDED_TRANSFERS_MAX:
        del space.transfers[space.ended.pop(0)]


def _alone_ms(transfer: TransferState) -> float:
    """What the transfer would have taken had the link been its own, as far as its plan knew."""
    predicted, queue = transfer.predicted_ms, transfer.queue_ms
    if not 0.0 < queue < predicted:
        return transfer.moved_ms
    return transfer.moved_ms * (predicted - queue) / predicted


def learn_link(rates: dict[str, LinkCost], key: str, size_bytes: float, time_ms: float) -> None:
    """Observe a move under ``key``; the oldest key gives way above the bound."""
    rate = rates.get(key)
    fresh = LinkCost() if rate is None else rate
    if not fresh.observe(size_bytes, time_ms) or rate is not None:
        return
    if len(rates) >= RATES_MAX:
        del rates[next(iter(rates))]
    rates[key] = fresh
