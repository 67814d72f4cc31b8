"""Many short conversations over a prefill and a decode engine, a dozen turns at a time."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.engine import Answer, EngineProcess

POLL_S = 0.002
SOURCES = ("local", "pulled", "computed")
STALL_S = 60.0
"""No turn ends for so long: the crowd stands still."""


@dataclass
class Talk:
    """One conversation: what was said so far, and where its KV lies."""

    name: str
    tokens: list[int]
    turns_left: int
    turn: int = 1
    hint: Any = None
    began: float = 0.0


@dataclass
class Seen:
    """What a crowd's turns saw."""

    turns: int = 0
    took_s: float = 0.0
    slowest_s: float = 0.0
    prefill: Counter[str] = field(default_factory=Counter)
    """Prompt tokens on the prefill engine by where they came from."""
    decode: Counter[str] = field(default_factory=Counter)
    """The same on the decode engine."""


def by_source(said: Answer) -> dict[str, int]:
    """Where an engine had a request's prompt tokens from."""
    return {source: int(said.report[source]) for source in SOURCES}


def spread_lengths(count: int, prompt: tuple[int, int], draw: random.Random) -> list[int]:
    """``count`` lengths spread evenly from the fewest to the most tokens, in an order drawn.

    So batches do equal work: lengths drawn one by one make the work of a batch of 24 differ by a
    tenth, which hides what is to be measured.
    """
    low, high = prompt
    lengths = [low + round((high - low) * (place + 0.5) / count) for place in range(count)]
    draw.shuffle(lengths)
    return lengths


class Crowd:
    """Drives conversations; a second turn waits behind the first ones of all others."""

    def __init__(self, prefill: EngineProcess, decode: EngineProcess, seed: int = 1) -> None:
        self._prefill = prefill
        self._decode = decode
        self._draw = random.Random(seed)
        self._made = 0

    def run(self, lengths: Sequence[int], *, at_once: int, turns: int, answer: int) -> Seen:
        """A conversation of ``turns`` turns for each length; their texts never repeat.

        Args:
            lengths: tokens of each first prompt, in the order of their coming.
            at_once: turns under way at the same time.
            answer: tokens of each answer.

        Raises:
            TimeoutError: no turn ended for ``STALL_S``.
        """
        waiting = deque(self._talk(turns, length) for length in lengths)
        under_way: dict[str, Talk] = {}
        seen, began = Seen(), time.perf_counter()
        last = began
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                talk = waiting.popleft()
                talk.began = time.perf_counter()
                under_way[talk.name] = talk
                self._add(self._prefill, talk, 1)
            for name, said in self._prefill.answers(POLL_S).items():
                talk = under_way[name]
                seen.prefill.update(by_source(said))
                talk.hint = said.hint
                self._add(self._decode, talk, answer)
            for name, said in self._decode.answers(POLL_S).items():
                talk = under_way.pop(name)
                last = time.perf_counter()
                seen.decode.update(by_source(said))
                seen.turns += 1
                seen.slowest_s = max(seen.slowest_s, last - talk.began)
                if self._goes_on(talk, said):
                    waiting.append(talk)
            if time.perf_counter() - last > STALL_S:
                raise TimeoutError(f"{len(under_way)} turns stand still for {STALL_S:g} s")
        seen.took_s = time.perf_counter() - began
        return seen

    def _talk(self, turns: int, length: int) -> Talk:
        self._made += 1
        return Talk(f"talk-{self._made}", self._text(length), turns)

    def _text(self, tokens: int) -> list[int]:
        return [self._draw.randrange(10, 500) for _ in range(tokens)]

    def _add(self, engine: EngineProcess, talk: Talk, tokens: int) -> None:
        part = {"session": talk.name, "turn": talk.turn, "id": f"{talk.name}-{talk.turn}"}
        if talk.hint is not None:
            part["hint"] = talk.hint
        engine.add(talk.name, talk.tokens, tokens=tokens, kvferry=part)

    def _goes_on(self, talk: Talk, said: Answer) -> bool:
        talk.tokens = talk.tokens + said.tokens + self._text(40)
        talk.hint, talk.turn, talk.turns_left = said.hint, talk.turn + 1, talk.turns_left - 1
        return talk.turns_left > 0
