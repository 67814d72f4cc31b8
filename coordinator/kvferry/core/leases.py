"""Questions about offers and leases that depend on the present. The fold never asks them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.state import OfferState, SpaceState, State

CACHE, HBM, HOST = "cache", "hbm", "host"
LEASE_TIERS = (HBM, HOST)
_ORDER = {HBM: 0, CACHE: 1, HOST: 2}


class Held(msgspec.Struct, kw_only=True):
    """What a tier holds. Runs that share blocks count each time: an upper bound of the memory."""

    offers: int = 0
    blocks: int = 0
    tokens: int = 0


def tier_order(tier: str) -> int:
    """The surest and quickest tier first; one that is not known comes after all others."""
    return _ORDER.get(tier, len(_ORDER))


def is_lease(offer: OfferState) -> bool:
    """Whether the source keeps these blocks; otherwise it offers them as long as they last."""
    return offer.tier in LEASE_TIERS


def ends_ms(offer: OfferState) -> int | None:
    """When a lease ends by itself, in server time; None for an offer without a time."""
    return offer.stored_ms + offer.ttl_ms if offer.ttl_ms > 0 else None


def is_expired(offer: OfferState, now_ms: int) -> bool:
    """Whether a lease's time is over. Its holder counts on its own clock and says so itself."""
    ends = ends_ms(offer)
    return ends is not None and ends <= now_ms


def expired(held: State | SpaceState | Iterable[OfferState], now_ms: int) -> list[OfferState]:
    """Leases whose time is over and whose end the ledger does not have yet, longest over first.

    Args:
        held: a state, a space, or offers.
        now_ms: the present in server store time, Unix milliseconds.
    """
    over = [offer for offer in _offers(held) if is_expired(offer, now_ms)]
    return sorted(over, key=lambda offer: (ends_ms(offer) or 0, offer.offer))


def by_tier(space: SpaceState, node: str = "") -> dict[str, Held]:
    """What is offered and leased by tier, in the space or on one node."""
    found: dict[str, Held] = {}
    for offer in space.offers.values():
        if node and offer.node != node:
            continue
        held = found.setdefault(offer.tier, Held())
        held.offers += 1
        held.blocks += offer.count
        holder = space.nodes.get(offer.node)
        held.tokens += offer.count * (holder.block_size if holder is not None else 0)
    return found


def _offers(held: State | SpaceState | Iterable[OfferState]) -> Iterable[OfferState]:
    if isinstance(held, State):
        return (offer for space in held.spaces.values() for offer in space.offers.values())
    if isinstance(held, SpaceState):
        return held.offers.values()
    return held
