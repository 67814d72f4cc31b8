"""Prompts as token ids: made from seeds, so that every run of the demo asks the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

FIRST_TOKEN, END_TOKEN = 8, 400
"""Ordinary tokens of the demo's vocabulary: special ones come before, unused ones after."""


def text(seed: str, tokens: int) -> list[int]:
    """Token ids that share no prefix with those of another seed."""
    draw = random.Random(seed)
    return [draw.randrange(FIRST_TOKEN, END_TOKEN) for _ in range(tokens)]


class Conversation:
    """A history that grows by a user's words and an engine's answer in turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = 0
        self.history: list[int] = []
        self.prompts: list[list[int]] = []
        """The prompt of each turn so far."""

    def ask(self, length: int) -> list[int]:
        """The next turn's prompt: the history and as many new words as make it ``length`` long."""
        self.turn += 1
        new = length - len(self.history)
        assert new > 0, f"conversation {self.name} is already {len(self.history)} tokens long"
        prompt = [*self.history, *text(f"{self.name}{self.turn}", new)]
        self.prompts.append(prompt)
        return prompt

    def answered(self, tokens: Sequence[int], *, stripped: int = 0) -> None:
        """Keep the answer, without its first ``stripped`` tokens."""
        self.history = [*self.prompts[-1], *tokens[stripped:]]


def edited(prompt: Sequence[int], at: int, tokens: int, *, seed: str) -> list[int]:
    """The prompt with ``tokens`` other tokens from ``at`` on."""
    end = at + tokens
    changed = [
        new if new != old else FIRST_TOKEN + (old + 1 - FIRST_TOKEN) % (END_TOKEN - FIRST_TOKEN)
        for new, old in zip(text(seed, tokens), prompt[at:end], strict=True)
    ]
    return [*prompt[:at], *changed, *prompt[end:]]
