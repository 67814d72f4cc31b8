"""A fold that stops between messages, with the index and the clock that stood there."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.state import State
from kvferry.index.folded import Observer
from kvferry.index.spaces import ResidencyIndex
from kvferry.ports.log import Stored
from kvferry.replay.step import step


class Fold:
    """Satisfies :class:`kvferry.index.folded.Folded`.

    Attributes:
        stored_ms: when the last folded message was stored; the present of this fold.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.index = ResidencyIndex.from_state(state)
        self.stored_ms = 0
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with what each message applied, after state and index have it."""
        self._observers.append(observer)

    def now_s(self) -> float:
        """The clock of everything that decides again."""
        return self.stored_ms / 1_000.0

    def take(self, stored: Stored) -> list[Applied]:
        """Fold the next message."""
        self.stored_ms = max(self.stored_ms, stored.stored_ms)
        applied = step(self.state, stored)
        if applied:
            self.index.follow(self.state, applied)
            for observer in self._observers:
                observer(applied)
        return applied
