"""A steady load of conversations over two engines; each answer is compared with one engine's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.chaos.fleet import Fleet
from tests.e2e.conftest import prompt
from tests.e2e.engine import Answer, EngineProcess

AT_ONCE = 4
ANSWER_TOKENS = 6
TURN_TOKENS = 70
FIRST_TOKENS = 300
LONGEST_TOKENS = 1200


class _Talk:
    """One conversation: what was said so far, and where."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.text = prompt(seed, FIRST_TOKENS)
        self.hint: Any = None
        self.turns = 0


class Conversations:
    """Turns go to the engines by turns, as a router would send them; with the last turn's hint,
    or without it and then by a plan.

    Attributes:
        counts: ``turns``, ``pulled`` (tokens), ``asked_again`` (the engine died), and for each
            reason why nothing was pulled how often.
    """

    def __init__(self, fleet: Fleet, reference: EngineProcess, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._fleet = fleet
        self._reference = reference
        self._draw = random.Random(seed)
        self._begun = 0
        self._talks = [self._talk() for _ in range(AT_ONCE)]

    def round(self, blow: Callable[[], None] = lambda: None) -> None:
        """One turn of each conversation; ``blow`` falls while all of them are under way."""
        names = list(self._fleet.engines)
        asked = []
        for talk in self._talks:
            name = names[(talk.turns + talk.number) % len(names)]
            request = f"t{talk.number}-{talk.turns}"
            given = {"hint": talk.hint} if talk.hint and self._draw.random() < 0.7 else None
            self._fleet.engines[name].add(request, talk.text, tokens=ANSWER_TOKENS, kvferry=given)
            asked.append((talk, name, request))
        blow()
        for talk, name, request in asked:
            answer = self._answer(talk, name, request)
            expected = self._reference.run(request, talk.text, tokens=ANSWER_TOKENS).tokens
            assert answer.tokens == expected, (request, name, answer.report)
            self._note(talk, answer)
        self._talks = [
            talk if len(talk.text) < LONGEST_TOKENS else self._talk() for talk in self._talks
        ]

    def _answer(self, talk: _Talk, name: str, request: str) -> Answer:
        """The answer; of another engine where the one that was asked died meanwhile."""
        try:
            return self._fleet.engines[name].answer(request)
        except (RuntimeError, OSError):
            engine = self._fleet.engines[name]
            assert not engine.alive, f"{name} lives and does not answer"
        self.counts["asked_again"] += 1
        (other,) = [one for one in self._fleet.engines.values() if one.name != name]
        return other.run(f"{request}-again", talk.text, tokens=ANSWER_TOKENS)

    def _note(self, talk: _Talk, answer: Answer) -> None:
        report = answer.report
        self.counts["turns"] += 1
        self.counts["pulled"] += int(report.get("pulled", 0))
        if not report.get("pulled"):
            self.counts[f"nothing pulled: {report.get('miss') or 'all local'}"] += 1
        talk.turns += 1
        talk.hint = answer.hint
        talk.text = talk.text + answer.tokens + prompt(len(talk.text), TURN_TOKENS)

    def _talk(self) -> _Talk:
        self._begun += 1
        return _Talk(self._begun, self._draw.randrange(1 << 30))
