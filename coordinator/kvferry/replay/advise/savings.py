"""What pulls spared, measured; and what they would have spared where nodes only observed."""

from __future__ import annotations

from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.guesses import Guesses
from kvferry.replay.advise.turns import OBSERVE, Part

TIME_MS_MAX = 1e10
"""Whoever tells a longer time, a third of a year, tells nothing."""


class Savings:
    """Adds up the times of the engines that computed prompts, in seconds.

    What brings a finished prompt to the engine that answers spares nothing here: somebody had to
    compute it first. A pull that came by a hint has no prediction of what computing had taken;
    then the mean of what was computed counts.

    Args:
        costs: rates to use where engines told none.
        guesses: how long observed pulls would take that have no prediction.

    Attributes:
        measured: some engine told how long it computed.
    """

    def __init__(self, costs: Costs, guesses: Guesses) -> None:
        self._costs = costs
        self._guesses = guesses
        self._timed_s, self._timed_tokens, self._untimed_tokens = 0.0, 0, 0
        self._predicted_s, self._unpredicted_tokens, self._pulling_s = 0.0, 0, 0.0
        self._observed_s, self._observed_tokens = 0.0, 0

    def add(self, part: Part, known_tokens: int) -> tuple[float, float]:
        """One turn.

        Args:
            part: on the engine that computed its prompt.
            known_tokens: of the prompt, that a source had and the engine had not.

        Returns:
            How much longer the turn had taken without reuse, and, if its engine only observed, how
            much shorter with it; in seconds, negative where moving takes more than computing.
        """
        ended, asked = part.ended, part.asked
        took_s = _seconds(ended.prefill_ms or ended.ttft_ms - ended.pull_ms)
        if took_s:
            self._timed_s += took_s
            self._timed_tokens += ended.computed_tokens
        else:
            self._untimed_tokens += ended.computed_tokens
        if asked is None:
            return 0.0, 0.0
        recompute_s = _seconds(asked.recompute_ms)
        if (ended.miss or asked.miss) == OBSERVE:
            if not asked.granted:
                return 0.0, 0.0  # It ended before its plan: nobody knows of anything to move.
            move_s = _seconds(asked.predicted_ms) or self._guesses.move_s(
                part.space, part.node, asked, known_tokens
            )
            return 0.0, self._observe(recompute_s, move_s, known_tokens)
        if not asked.transfer:
            return 0.0, 0.0
        pulling_s = _seconds(part.pull_ms)
        self._pulling_s += pulling_s
        if not part.arrived:
            return -pulling_s, 0.0
        if recompute_s:
            self._predicted_s += recompute_s
        else:
            self._unpredicted_tokens += ended.pulled_tokens
            recompute_s = self.compute_s(ended.pulled_tokens)
        return recompute_s - pulling_s, 0.0

    def _observe(self, recompute_s: float, move_s: float, tokens: int) -> float:
        if recompute_s:
            spared_s = max(0.0, recompute_s - move_s)
            self._observed_s += spared_s
            return spared_s
        self._observed_tokens += tokens
        self._observed_s -= move_s
        return self.compute_s(tokens) - move_s

    @property
    def measured(self) -> bool:
        return self._timed_s > 0 and self._timed_tokens > 0

    def compute_s(self, tokens: int) -> float:
        """To compute so many tokens, at the mean rate of what was computed."""
        if self.measured:
            return tokens * self._timed_s / self._timed_tokens
        return self._costs.compute_s(tokens)

    @property
    def prefill_s(self) -> float:
        """Computing that was done."""
        return self._timed_s + self.compute_s(self._untimed_tokens)

    @property
    def recompute_s(self) -> float:
        """Computing that pulls made needless."""
        return self._predicted_s + self.compute_s(self._unpredicted_tokens)

    @property
    def spared_s(self) -> float:
        """The same, less what pulls took, failed ones too; negative where they took more."""
        return self.recompute_s - self._pulling_s

    @property
    def observed_s(self) -> float:
        """The same where nodes only observed."""
        return self._observed_s + self.compute_s(self._observed_tokens)


def _seconds(time_ms: float) -> float:
    return time_ms / 1_000.0 if 0 < time_ms < TIME_MS_MAX else 0.0
