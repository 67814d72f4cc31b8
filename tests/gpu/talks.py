"""Conversations of a busy pair: their shapes, their texts, and in which order their turns come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.gpu.families import Family, Prompts, Turn

Shape = list[tuple[int, int]]
"""Of each turn: the new tokens of its prompt, and the tokens of its answer."""
MIXED_TURNS = (2, 4)
PRESSED_TURNS = 3
ANSWER = (8, 48)
LONGEST_OPENING = 12_000
CPU_LONGEST_OPENING = {"mixed": 300, "pressed": 900}


@dataclass(frozen=True)
class Arm:
    """One way to serve a conversation."""

    name: str
    family: Family
    reuse: bool
    """Whether P may have KV from D."""


class Talk:
    """One conversation, whose texts are drawn before any clock runs."""

    def __init__(self, shape: Shape, prompts: Prompts) -> None:
        self.shape = shape
        self.turns: list[Turn] = []
        """Those that have ended."""
        self._said = [prompts.fresh(new) for new, _ in shape]
        self._text: list[int] = []
        self._hint: dict[str, Any] | None = None

    def next_turn(self, arm: Arm, after: Future[None] | None = None) -> None:
        """Take the next turn, once the one before it has ended."""
        if after is not None:
            after.result()
        number = len(self.turns)
        self._text = self._text + self._said[number]
        known = (self._hint or arm.family.unhinted()) if arm.reuse else None
        turn = arm.family.turn(self._text, self.shape[number][1], known)
        self.turns.append(turn)
        self._text, self._hint = self._text + turn.answer, turn.hint

    def all_turns(self, arm: Arm) -> None:
        for _ in self.shape:
            self.next_turn(arm)


Order = Callable[[ThreadPoolExecutor, Sequence[Talk], Arm, random.Random], list[Future[None]]]
"""Starts every turn of the conversations on the pool, whose threads are the turns at a time."""


def back_to_back(
    pool: ThreadPoolExecutor, talks: Sequence[Talk], arm: Arm, draw: random.Random
) -> list[Future[None]]:
    """A conversation's next turn comes as soon as the one before it has ended."""
    return [pool.submit(talk.all_turns, arm) for talk in draw.sample(talks, len(talks))]


def in_waves(
    pool: ThreadPoolExecutor, talks: Sequence[Talk], arm: Arm, draw: random.Random
) -> list[Future[None]]:
    """A conversation's next turn comes when all others have begun theirs, shuffled every time."""
    last: dict[Talk, Future[None]] = {}
    jobs = []
    for _ in range(max(len(talk.shape) for talk in talks)):
        for talk in draw.sample(talks, len(talks)):
            last[talk] = pool.submit(talk.next_turn, arm, last.get(talk))
            jobs.append(last[talk])
    return jobs


@dataclass(frozen=True)
class Load:
    """What every arm serves, a share in each round."""

    name: str
    shares: list[list[Shape]]
    """The conversations of each round, the same shapes for every arm."""
    order: Order

    def in_play_tokens(self) -> int:
        """Tokens of the conversations of the smallest share, at their first turns."""
        return min(sum(shape[0][0] for shape in share) for share in self.shares)

    def longest_share_tokens(self) -> int:
        """Tokens of the conversations of the largest share, at their ends."""
        return max(sum(sum(map(sum, shape)) for shape in share) for share in self.shares)


def mixed(requests: int, rounds: int, *, cpu: bool) -> Load:
    """At least ``requests`` turns of conversations of two to four turns, short and long."""
    draw = random.Random(7)
    top = CPU_LONGEST_OPENING["mixed"] if cpu else LONGEST_OPENING
    opening, added = (top // 12, top), (top // 100 + 1, top // 8)
    shapes: list[Shape] = []
    while sum(map(len, shapes)) < requests or len(shapes) < rounds:
        shapes.append(_shape(draw, draw.randint(*MIXED_TURNS), opening, added))
    return Load("mixed", [shapes[number::rounds] for number in range(rounds)], back_to_back)


def pressed(requests: int, rounds: int, *, cpu: bool) -> Load:
    """At most ``requests`` turns of three-turn conversations, a round's all in play together."""
    draw = random.Random(8)
    top = CPU_LONGEST_OPENING["pressed"] if cpu else LONGEST_OPENING
    opening, added = (top // 3, top), (top // 200 + 1, top // 16)
    in_play = max(1, requests // rounds // PRESSED_TURNS)
    shares = [
        [_shape(draw, PRESSED_TURNS, opening, added) for _ in range(in_play)] for _ in range(rounds)
    ]
    return Load("pressed", shares, in_waves)


def _shape(
    draw: random.Random, turns: int, opening: tuple[int, int], added: tuple[int, int]
) -> Shape:
    new = [draw.randint(*opening), *(draw.randint(*added) for _ in range(turns - 1))]
    return [(count, draw.randint(*ANSWER)) for count in new]
