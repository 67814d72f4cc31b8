"""What this node really keeps, beside what its record says; for `kvferry audit --live`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvferry.core.events import Retained
from kvferry.core.messages import HeldLease, HeldPin
from kvferry.node.export.table import ExportTable
from kvferry_connectors.tilert.node.member import Member
from kvferry_connectors.vllm.book import Book

UNKNOWN = -1


class NodeTruth:
    """The host tier's and the export table's word on what the book has recorded.

    Asked on the agent's thread; see :class:`kvferry.node.agent.holdings.Truth`.
    """

    def __init__(
        self,
        exports: ExportTable,
        book: Callable[[], Book | None],
        member: Callable[[], Member | None],
    ) -> None:
        """``book`` and ``member`` give None before the node is in a space."""
        self._exports = exports
        self._book = book
        self._member = member

    def held(self, event: Retained) -> int:
        """How many blocks of this run are in its slots; -1 where that cannot be told."""
        book, member = self._book(), self._member()
        if book is None or member is None:
            return UNKNOWN
        chain = book.hosted_chain(event.offer, event.rev)
        return UNKNOWN if chain is None else member.tier.held(chain)

    def pins(self) -> Sequence[HeldPin]:
        """Each pin that stands."""
        return self._exports.standing_pins()

    def leases(self) -> Sequence[HeldLease]:
        """None: what is in the host tier is held by no lease of an engine's pool."""
        return ()
