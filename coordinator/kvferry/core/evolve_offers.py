"""How offers and leases change: retained, evicted, inventory."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.events import Evicted, Inventory, Retained
from kvferry.core.evolve_transfers import fail_unlisted, open_listed
from kvferry.core.state import INVENTORY_PARTS_MAX, NodeState, OfferState, SpaceState
from kvferry.core.totals import bump
from kvferry.ids import SHORT_BYTES, sample_stride


def retained(
    space: SpaceState, node: NodeState, applied: Applied, event: Retained
) -> tuple[str, ...]:
    """A run is kept; a higher rev of a known offer replaces it."""
    known = space.offers.get(event.offer)
    if known is not None:
        if known.node != node.name:
            bump(space.totals.strays, "retained")
            return ()
        if event.rev <= known.rev:
            bump(space.totals.repeated, "retained")
            return ()
    return _put(space, node, event, applied.position.stored_ms)


def evicted(
    space: SpaceState, node: NodeState, applied: Applied, event: Evicted
) -> tuple[str, ...]:
    """A run is shortened to ``keep`` blocks or ended."""
    totals = space.totals
    known = space.offers.get(event.offer)
    if event.offer:
        if known is None or known.node != node.name:
            bump(totals.strays, "evicted")
            return ()
        if event.rev <= known.rev:
            bump(totals.repeated, "evicted")
            return ()
    bump(totals.evictions, event.reason)
    bump(totals.evicted_blocks, event.reason, event.count)
    if known is None:
        return ()
    if event.keep <= 0:
        del space.offers[event.offer]
        return (event.offer,)
    known.rev = event.rev
    if event.keep < known.count:
        known.count = event.keep
        known.tail = b""
        known.hashes = known.hashes[: _listed_bytes(node, known.base, known.count)]
    return (event.offer,)


def inventory(
    space: SpaceState, node: NodeState, applied: Applied, event: Inventory
) -> tuple[str, ...]:
    """Collect the parts; the last one replaces what is known of the node as a whole."""
    parts = node.inventory
    if parts and event.part <= parts[-1].part:
        parts.clear()  # the node began its inventory again
    if len(parts) >= INVENTORY_PARTS_MAX:
        bump(space.totals.strays, "inventory")
        return ()
    parts.append(event)
    if not event.last:
        return ()
    node.inventory = []
    stored_ms = applied.position.stored_ms
    listed = {offer.offer: offer for part in parts for offer in part.offers}
    touched = [
        offer.offer
        for offer in space.offers.values()
        if offer.node == node.name and offer.offer not in listed
    ]
    for gone in touched:
        del space.offers[gone]
    for offer in listed.values():
        known = space.offers.get(offer.offer)
        if known is None or (known.node == node.name and offer.rev >= known.rev):
            touched.extend(_put(space, node, offer, stored_ms))
    moves = {move.transfer: move for part in parts for move in part.transfers}
    fail_unlisted(space, node, moves.keys(), stored_ms)
    open_listed(space, node, moves.values(), stored_ms)
    return tuple(touched)


def end_offers(space: SpaceState, node: str) -> tuple[str, ...]:
    """End everything that the node offers."""
    gone = tuple(offer.offer for offer in space.offers.values() if offer.node == node)
    for offer in gone:
        del space.offers[offer]
    return gone


def _put(space: SpaceState, node: NodeState, event: Retained, stored_ms: int) -> tuple[str, ...]:
    if event.count <= 0 or not event.offer:
        bump(space.totals.strays, "retained")
        return ()
    blob = event.hashes[: _listed_bytes(node, event.base, event.count)]
    if len(blob) % SHORT_BYTES:
        bump(space.totals.strays, "retained_hashes")
        blob = blob[: len(blob) // SHORT_BYTES * SHORT_BYTES]
    space.offers[event.offer] = OfferState(
        offer=event.offer,
        node=node.name,
        incarnation=node.incarnation,
        rev=event.rev,
        tier=event.tier,
        count=event.count,
        tail=event.tail,
        hashes=blob,
        base=event.base,
        ttl_ms=event.ttl_ms,
        stored_ms=stored_ms,
        session=event.session,
        request=event.request,
        why=event.why,
    )
    return (event.offer,)


def _listed_bytes(node: NodeState, base: int, count: int) -> int:
    """Bytes of the sampled hashes from block ``base`` on that lie within ``count`` blocks."""
    if node.block_size <= 0 or base < 0:
        return 0
    return max(0, count - base) // sample_stride(node.block_size) * SHORT_BYTES
