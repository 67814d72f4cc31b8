"""Which conversation a request continues, where its KV is, and the hint to it.

Every answered turn is remembered under the exact prompt that it had. A new request continues
the longest remembered prompt that it begins with, so a growing conversation, a fork of it and a
history with an edited end all find the last turn that they share.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from dataclasses import dataclass

from kvferry_connectors.router.prompts import PromptChain


@dataclass(frozen=True)
class Known:
    """A remembered turn."""

    session: str
    prefill: str
    decode: str
    hint: dict[str, object] | None
    """D's hint; may be used any number of times. ``None`` if D gave none, and then an older
    turn's hint must not stand in for it: a plan finds more."""
    turn: int = 1
    """Its number in the session, from 1 on."""


def turn_of(known: Known | None) -> int:
    """The number of the turn that follows on ``known``."""
    return known.turn + 1 if known is not None else 1


@dataclass(frozen=True)
class _Turn:
    known: Known
    node: bytes
    length: int


class SessionBook:
    """The remembered turns, least recently used ones forgotten first."""

    def __init__(self, turns_max: int) -> None:
        self._turns_max = turns_max
        self._turns: OrderedDict[bytes, _Turn] = OrderedDict()
        self._lengths: dict[bytes, Counter[int]] = {}
        self._named: OrderedDict[bytes, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def find(self, chain: PromptChain | None, named: bytes | None) -> Known | None:
        """The turn that a request continues.

        Args:
            chain: the request's prompt within its scope.
            named: the scope of an explicit session, whose last turn serves if no prompt fits.
        """
        turn = self._longest(chain) if chain is not None else None
        if turn is not None:
            return turn.known
        if named is None or named not in self._named:
            return None
        self._named.move_to_end(named)
        return self._named[named]

    def remember(self, chain: PromptChain | None, named: bytes | None, known: Known) -> None:
        """Records an answered turn; the newest answer to one prompt counts."""
        if named is not None:
            self._named[named] = known
            self._named.move_to_end(named)
            if len(self._named) > self._turns_max:
                self._named.popitem(last=False)
        if chain is None:
            return
        end = chain.own_end()
        self._forget(end)
        turn = _Turn(known, chain.nodes[-1], chain.end_length)
        self._turns[end] = turn
        self._lengths.setdefault(turn.node, Counter())[turn.length] += 1
        if len(self._turns) > self._turns_max:
            self._forget(next(iter(self._turns)))

    def end(self, named: bytes | None) -> None:
        """A named session is over: its name begins anew."""
        if named is not None:
            self._named.pop(named, None)

    def _longest(self, chain: PromptChain) -> _Turn | None:
        for index in range(len(chain.nodes) - 1, -1, -1):
            lengths = self._lengths.get(chain.nodes[index])
            for length in sorted(lengths or (), reverse=True):
                end = chain.end(index, length)
                if end is not None and end in self._turns:
                    self._turns.move_to_end(end)
                    return self._turns[end]
        return None

    def _forget(self, end: bytes) -> None:
        turn = self._turns.pop(end, None)
        if turn is None:
            return
        lengths = self._lengths[turn.node]
        lengths[turn.length] -= 1
        if not lengths[turn.length]:
            del lengths[turn.length]
        if not lengths:
            del self._lengths[turn.node]


def new_session() -> str:
    """A name for a conversation that its client did not name."""
    return f"s-{secrets.token_hex(6)}"
