"""What this node holds, told to who audits: from the mirror, so that the engine pays nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kvferry.core.events import Retained
from kvferry.core.messages import HeldLease, HeldOffer, HeldPin, Holdings, held_key
from kvferry.ids import SHORT_BYTES
from kvferry.node.agent.lanes_facts import Standing
from kvferry.node.agent.mirror import Mirror

logger = logging.getLogger("kvferry.node")

T = TypeVar("T")

PAGE_ITEMS_MAX = 256
PAGE_BLOCKS_MAX = 16_384
"""Blocks of one page that are compared with the engine's pool, so that no page takes long."""
UNKNOWN = -1


class Truth(Protocol):
    """What the engine really has, whatever was recorded. Asked on the agent's thread."""

    def held(self, event: Retained) -> int:
        """How many blocks of this offer or lease are really there; -1 where that cannot be told."""
        ...

    def leases(self) -> Sequence[HeldLease]:
        """Each lease that the engine holds."""
        ...

    def pins(self) -> Sequence[HeldPin]:
        """Each pin that stands."""
        ...


class HoldingsDesk:
    """Answers who asks what this node holds.

    Args:
        standing: what is held, and at which place of the record.
        truth: the engine's own word; None for a node without KV.
    """

    def __init__(
        self, node: str, standing: Callable[[], Standing | None], truth: Truth | None
    ) -> None:
        self._node = node
        self._standing = standing
        self._truth = truth

    def page(self, after: str) -> Holdings | None:
        """What comes after this key, or its first part; None before the record has begun."""
        now = self._standing()
        if now is None:
            return None
        # The place comes before the pins: what ended by then ended before they were looked at.
        record, seq, held = now
        offers, transfers, upto = _cut(held, after)
        return Holdings(
            space=record.space,
            node=self._node,
            incarnation=record.incarnation,
            epoch=record.epoch,
            seq=seq,
            after=after,
            upto=upto,
            offers=tuple(self._offer(one) for one in offers),
            transfers=tuple(transfers),
            pins=() if after else self._all("pins", lambda truth: truth.pins()),
            leases=() if after else self._all("leases", lambda truth: truth.leases()),
        )

    def _offer(self, event: Retained) -> HeldOffer:
        return HeldOffer(
            offer=event.offer,
            rev=event.rev,
            tier=event.tier,
            count=event.count,
            tail=event.tail[:SHORT_BYTES],
            lent=self._really_held(event),
        )

    def _really_held(self, event: Retained) -> int:
        if self._truth is None:
            return UNKNOWN
        try:
            return self._truth.held(event)
        except Exception:
            # The callback is the connector's; its failure costs a comparison, not the record.
            logger.exception("what node %s has of %s could not be told", self._node, event.offer)
            return UNKNOWN

    def _all(self, what: str, of: Callable[[Truth], Sequence[T]]) -> tuple[T, ...]:
        if self._truth is None:
            return ()
        try:
            return tuple(of(self._truth))
        except Exception:
            logger.exception("the %s that stand at node %s could not be told", what, self._node)
            return ()


def _cut(held: Mirror, after: str) -> tuple[list[Retained], list[str], str]:
    """Offers, transfers and the last key of the page after ``after``; no key for the last page."""
    keys: dict[str, Retained | str] = {held_key("offer", k): v for k, v in held.offers.items()}
    keys |= {held_key("transfer", transfer): transfer for transfer in held.transfers}
    offers: list[Retained] = []
    transfers: list[str] = []
    blocks = 0
    rest = sorted(key for key in keys if key > after)
    for number, key in enumerate(rest):
        item = keys[key]
        if isinstance(item, str):
            transfers.append(item)
        else:
            offers.append(item)
            blocks += item.count
        full = number + 1 >= PAGE_ITEMS_MAX or blocks >= PAGE_BLOCKS_MAX
        if full and number + 1 < len(rest):
            return offers, transfers, key
    return offers, transfers, ""
