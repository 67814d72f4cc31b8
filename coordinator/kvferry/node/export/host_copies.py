"""Which chains wait to be copied to the host tier, and how fast they may be."""

from __future__ import annotations

from collections.abc import Sequence

WAITING_MAX = 256
"""Chains that may wait to be copied; one more is not copied at all."""


FORGET_S = 60.0
"""So that what was dear once is tried again."""


class ToHost:
    """A chain to copy: block ``blocks[i]`` of the engine holds ``hashes[i]``.

    Attributes:
        at: blocks from the first on that the host tier has.
    """

    __slots__ = ("at", "blocks", "hashes", "key", "request", "session", "tenant")

    def __init__(
        self,
        key: str,
        hashes: Sequence[bytes],
        blocks: Sequence[int],
        *,
        request: str = "",
        session: str = "",
        tenant: str = "",
    ) -> None:
        self.key = key
        self.hashes = hashes
        self.blocks = blocks
        self.request = request
        self.session = session
        self.tenant = tenant
        self.at = 0

    @property
    def whole(self) -> bool:
        """Everything is there."""
        return self.at == len(self.blocks)


class Piece:
    """Blocks under way to the host.

    Attributes:
        void: positions in the piece whose block was reused meanwhile.
    """

    __slots__ = ("_nth", "answers", "blocks", "hashes", "ok", "slots", "void")

    def __init__(self, hashes: list[bytes], blocks: list[int], slots: list[int]) -> None:
        self.hashes = hashes
        self.blocks = blocks
        self.slots = slots
        self.void: set[int] = set()
        self._nth = {block: nth for nth, block in enumerate(blocks)}
        self.answers = 0
        self.ok = True

    def reused(self, block: int) -> None:
        """The engine has handed the block out: what was copied may be something else."""
        nth = self._nth.get(block)
        if nth is not None:
            self.void.add(nth)


class Pace:
    """Lets so many bytes a second pass, in pieces."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._next_s = 0.0

    def ready(self, now_s: float) -> bool:
        """Whether the next piece may go."""
        return now_s >= self._next_s

    def passed(self, size: int, now_s: float) -> None:
        """A piece of ``size`` bytes went."""
        self._next_s = max(now_s, self._next_s) + size / self._bytes_per_s


class LoadCost:
    """What copies out of the host tier take: the fastest of late, by the block.

    The fastest, for what held up one of them need not hold up the next.
    """

    def __init__(self) -> None:
        self._block_ms = 0.0
        self._noted_s = float("-inf")

    def noted(self, blocks: int, copy_ms: float, now_s: float) -> None:
        """So many blocks were copied in this time."""
        if blocks <= 0:
            return
        known = self._block_ms if now_s - self._noted_s < FORGET_S else float("inf")
        if copy_ms / blocks <= known:
            self._block_ms, self._noted_s = copy_ms / blocks, now_s

    def ms(self, blocks: int, now_s: float) -> float:
        """What copying so many blocks will take; 0 while nothing recent is known."""
        return blocks * self._block_ms if now_s - self._noted_s < FORGET_S else 0.0
