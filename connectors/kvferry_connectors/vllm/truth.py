"""What this engine really lends, beside what its record says; for `kvferry audit --live`."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.core.messages import HeldPin
from kvferry.node.export.table import ExportTable
from kvferry_connectors.vllm.book import Book


class LendingTruth:
    """The export table's and the block pool's word on what the book has recorded.

    Asked on the agent's thread, where the book lives; it costs the engine no more than the pins
    of a peer would. See :class:`kvferry.node.agent.holdings.Truth`.
    """

    def __init__(self, book: Book, table: ExportTable) -> None:
        self._book = book
        self._table = table

    def lent(self, offer: str, rev: int) -> int:
        """How many blocks of this offer a pin would be granted now; -1 where it has changed."""
        chain = self._book.offered_chain(offer, rev)
        return -1 if chain is None else self._table.lent(chain)

    def pins(self) -> Sequence[HeldPin]:
        """Each pin that stands."""
        return self._table.standing_pins()
