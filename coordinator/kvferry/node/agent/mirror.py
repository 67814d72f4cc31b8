"""What the ledger should think that this node holds, kept from the facts on their way out.

So an inventory costs the engine nothing. The rules are those of the fold
(:mod:`kvferry.core.evolve_offers`): a higher rev replaces, an eviction shortens or ends.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.events import (
    Event,
    Evicted,
    Inventory,
    OpenTransfer,
    Requested,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.ids import SHORT_BYTES, sample_stride

PART_BYTES_MAX = 128 * 1024
"""Roughly, of one inventory part; well below the bound of a message."""

ITEM_BYTES = 256
"""What an offer or transfer takes besides its hashes, names included; an upper estimate."""


class Mirror:
    """Offers and open transfers of one incarnation.

    Args:
        block_size: tokens in a block; 0 for a node without KV.
    """

    def __init__(self, block_size: int) -> None:
        self._stride = sample_stride(block_size) if block_size > 0 else 1
        self.offers: dict[str, Retained] = {}
        self.transfers: dict[str, OpenTransfer] = {}

    def apply(self, event: Event) -> None:
        """Follow one fact; others than those of offers and transfers change nothing."""
        match event:
            case Retained():
                known = self.offers.get(event.offer)
                if known is None or event.rev > known.rev:
                    self.offers[event.offer] = event
            case Evicted():
                self._evict(event)
            case Requested():
                if event.transfer:
                    self.transfers[event.transfer] = OpenTransfer(
                        transfer=event.transfer,
                        request=event.request,
                        source=event.source,
                        wanted=event.wanted,
                        granted=event.granted,
                    )
            case Transferred() | TransferFailed():
                self.transfers.pop(event.transfer, None)

    def replace_offers(self, offers: Iterable[Retained]) -> None:
        """The engine's own word, where the mirror could not follow."""
        self.offers = {offer.offer: offer for offer in offers}

    def parts(self) -> list[Inventory]:
        """Everything as inventory parts, numbered from 0; the last one says so."""
        groups: list[tuple[list[Retained], list[OpenTransfer]]] = [([], [])]
        room = PART_BYTES_MAX
        for offer in self.offers.values():
            size = ITEM_BYTES + len(offer.hashes)
            if size > room and groups[-1][0]:
                groups.append(([], []))
                room = PART_BYTES_MAX
            groups[-1][0].append(offer)
            room -= size
        for transfer in self.transfers.values():
            if room < ITEM_BYTES:
                groups.append(([], []))
                room = PART_BYTES_MAX
            groups[-1][1].append(transfer)
            room -= ITEM_BYTES
        return [
            Inventory(
                part=part,
                last=part == len(groups) - 1,
                offers=tuple(offers),
                transfers=tuple(transfers),
            )
            for part, (offers, transfers) in enumerate(groups)
        ]

    def _evict(self, event: Evicted) -> None:
        known = self.offers.get(event.offer)
        if known is None or event.rev <= known.rev:
            return
        if event.keep <= 0:
            del self.offers[event.offer]
            return
        if event.keep >= known.count:
            self.offers[event.offer] = msgspec.structs.replace(known, rev=event.rev)
            return
        listed = max(0, event.keep - known.base) // self._stride
        self.offers[event.offer] = msgspec.structs.replace(
            known,
            rev=event.rev,
            count=event.keep,
            tail=b"",
            hashes=known.hashes[: listed * SHORT_BYTES],
        )
