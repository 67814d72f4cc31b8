"""The parts that all engines of a simulated fleet share: time, ways, and where blocks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from kvferry.bench.policy.figures import Figures
from kvferry.bench.policy.links import Links
from kvferry.bench.policy.shapes import Shape
from kvferry.replay.nodes.clock import Clock
from kvferry.replay.trace import BLOCK_TOKENS, Turn


class Copies:
    """Of each block how many engines and tiers have it, and why the last copy went."""

    def __init__(self) -> None:
        self._copies: Counter[int] = Counter()
        self._went: dict[int, str] = {}
        self._begun: set[int] = set()

    def begun(self, chain: Iterable[int]) -> None:
        """An engine begins to compute what it lacks of a chain."""
        self._begun.update(chain)

    def came(self, blocks: Iterable[int]) -> None:
        """One copy more of each."""
        self._copies.update(blocks)

    def went(self, block: int, cause: str) -> None:
        """One copy less."""
        self._copies[block] -= 1
        if not self._copies[block]:
            self._went[block] = cause

    def why_gone(self, block: int) -> str | None:
        """Why there is no copy any more; empty if there is one, None if there never was."""
        if self._copies[block]:
            return ""
        return self._went.get(block, "under_way" if block in self._begun else None)


class Job(msgspec.Struct, kw_only=True, eq=False):
    """A turn on its way through the fleet."""

    turn: Turn
    sent_s: float
    prefill: str = ""
    decode: str = ""
    short_since_s: float | None = None
    """Since when it waits for memory."""
    loaded: bool = True
    """What it pulls is there."""
    not_pulled: str = ""
    """Why nothing was pulled although somebody had it."""


class Shared(msgspec.Struct, kw_only=True, eq=False):
    """What every engine works with."""

    shape: Shape
    clock: Clock = msgspec.field(default_factory=Clock)
    copies: Copies = msgspec.field(default_factory=Copies)
    figures: Figures = msgspec.field(default_factory=Figures)
    links: Links

    @property
    def block_bytes(self) -> int:
        """KV bytes of a block."""
        return BLOCK_TOKENS * self.shape.token_bytes
