"""Requests wait their turn for staging memory while they wait for the engine anyway."""

from __future__ import annotations


class Turns:
    """Counts what each rank's staging memory will hold, so that no prompt is computed in vain.

    The workers' own pools decide; this only keeps requests back that would find them full. Used by
    the engine's thread alone.
    """

    def __init__(self, size: int, sends_max: int) -> None:
        """``size`` in bytes of one rank."""
        self._size = size
        self._sends_max = sends_max
        self._held: dict[str, int] = {}
        self._sum = 0

    def take(self, request: str, length: int) -> bool:
        """Whether it is this request's turn; once it is, it stays so until given back.

        A prompt that is too long for all the memory has its turn when it is alone, and is then
        refused by name.
        """
        if request in self._held:
            return True
        full = self._sum + length > self._size or len(self._held) >= self._sends_max
        if self._held and full:
            return False
        self._held[request] = length
        self._sum += length
        return True

    def give(self, request: str) -> None:
        """Its memory is free again. Nothing happens for one that has no turn."""
        self._sum -= self._held.pop(request, 0)

    @property
    def held(self) -> int:
        """Requests that have their turn."""
        return len(self._held)
