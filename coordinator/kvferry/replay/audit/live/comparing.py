"""What differs between a fold and a node's own word, at one and the same place of its record."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvferry.core.leases import CACHE, HOST
from kvferry.core.messages import HeldOffer, Holdings, held_key
from kvferry.core.state import OPEN, OfferState, SpaceState
from kvferry.ids import SHORT_BYTES


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the ledger and a node say differently."""

    about: str
    """An offer, a transfer or a node."""
    story: str


def differences(space: SpaceState, page: Holdings) -> list[Difference]:
    """Of the page's part of what its node holds. The fold stands where the page does."""
    return [*_offers(space, page), *_transfers(space, page), *_pins(space, page)]


def doubts(space: SpaceState, page: Holdings) -> set[Difference]:
    """Where an engine's own memory is not what its node has recorded, or the ledger has.

    The memory changes before the record does, so these are differences only if they stay.
    """
    short = {_short(page.node, one) for one in page.offers if 0 <= one.lent < one.count}
    return short | {
        Difference(
            about=one.lease,
            story=f"the engine of {page.node} holds {one.blocks} blocks by the lease {one.lease}, "
            "of which the ledger knows nothing",
        )
        for one in page.leases
        if one.lease not in space.offers
    }


def _short(node: str, one: HeldOffer) -> Difference:
    if one.tier == CACHE:
        story = (
            f"{node} has recorded more of {one.offer} (rev {one.rev}) than its engine would lend: "
            f"its pool grants {one.lent} blocks"
        )
    else:
        where = "host tier has" if one.tier == HOST else "engine holds"
        story = (
            f"{node} has recorded {one.count} blocks of {one.offer} (tier {one.tier}), of which "
            f"its {where} {one.lent}"
        )
    return Difference(about=one.offer, story=story)


def _offers(space: SpaceState, page: Holdings) -> Iterator[Difference]:
    told = {one.offer: one for one in page.offers}
    known = {
        key: offer
        for key, offer in space.offers.items()
        if offer.node == page.node and _on_page(held_key("offer", key), page)
    }
    for name, one in told.items():
        offer = known.get(name)
        if offer is None:
            yield Difference(
                about=name,
                story=f"{page.node} holds {name} ({_of(one)}), of which the ledger knows nothing",
            )
        elif (wrong := _unlike(offer, one)) is not None:
            yield Difference(
                about=name,
                story=f"{name} of {page.node}: the ledger says {wrong[0]}, the node {wrong[1]}",
            )
    for name, offer in known.items():
        if name not in told:
            yield Difference(
                about=name,
                story=f"the ledger says that {page.node} holds {name} ({_known(offer)}), but it "
                "does not",
            )


def _unlike(offer: OfferState, one: HeldOffer) -> tuple[str, str] | None:
    """What the ledger says and what the node says, of the first thing that differs."""
    sides: list[tuple[str, object, object]] = [
        ("tier", offer.tier, one.tier),
        ("blocks", offer.count, one.count),
        ("rev", offer.rev, one.rev),
        ("last block", offer.tail[:SHORT_BYTES].hex(), one.tail.hex()),
    ]
    for what, ours, theirs in sides:
        if ours != theirs:
            return f"{what} {ours or 'unknown'}", f"{theirs or 'unknown'}"
    return None


def _transfers(space: SpaceState, page: Holdings) -> Iterator[Difference]:
    told = set(page.transfers)
    known = {
        key
        for key, transfer in space.transfers.items()
        if transfer.phase == OPEN
        and transfer.target == page.node
        and _on_page(held_key("transfer", key), page)
    }
    for name in sorted(told - known):
        yield Difference(
            about=name,
            story=f"transfer {name} is under way at {page.node}, but not in the ledger",
        )
    for name in sorted(known - told):
        yield Difference(
            about=name,
            story=f"transfer {name} is open in the ledger, but {page.node} knows nothing of it",
        )


def _pins(space: SpaceState, page: Holdings) -> Iterator[Difference]:
    for pin in page.pins:
        transfer = space.transfers.get(pin.transfer)
        ended = space.early_pins.get(pin.transfer, "")
        if transfer is not None and transfer.source == page.node:
            ended = transfer.pin
        if ended:
            yield Difference(
                about=pin.transfer,
                story=f"the ledger says that the pin of transfer {pin.transfer} ended as {ended} "
                f"at {page.node}, but {pin.blocks} blocks are still pinned there for {pin.target}",
            )


def _on_page(key: str, page: Holdings) -> bool:
    return page.after < key and (not page.upto or key <= page.upto)


def _of(one: HeldOffer) -> str:
    return f"tier {one.tier}, {one.count} blocks, rev {one.rev}"


def _known(offer: OfferState) -> str:
    return f"tier {offer.tier}, {offer.count} blocks, rev {offer.rev}"
