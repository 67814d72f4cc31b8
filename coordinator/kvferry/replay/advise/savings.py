"""What pulls spared, measured; and what they would have spared where nodes only observed."""

from __future__ import annotations

from kvferry.replay.advise.turns import Part

OBSERVE = "observe"
TIME_MS_MAX = 1e10
"""Whoever tells a longer time, a third of a year, tells nothing."""


class Savings:
    """Adds up the times of the engines that computed prompts, in seconds.

    What brings a finished prompt to the engine that answers spares nothing here: somebody had to
    compute it first.

    Attributes:
        prefill_s: computing that was done.
        recompute_s: computing that pulls made needless, as it was predicted.
        spared_s: the same, less what pulls took, failed ones too.
        observed_s: the same as ``spared_s``, predicted by nodes that only observed.
    """

    def __init__(self) -> None:
        self.prefill_s = 0.0
        self.recompute_s = 0.0
        self.spared_s = 0.0
        self.observed_s = 0.0

    def add(self, part: Part) -> None:
        """One turn."""
        ended, asked = part.ended, part.asked
        self.prefill_s += _seconds(ended.prefill_ms or ended.ttft_ms - ended.pull_ms)
        if asked is None:
            return
        recompute_s = _seconds(asked.recompute_ms)
        if (ended.miss or asked.miss) == OBSERVE:
            predicted_s = _seconds(asked.predicted_ms)
            if predicted_s:
                self.observed_s += max(0.0, recompute_s - predicted_s)
        elif asked.transfer:
            self.spared_s -= _seconds(part.pull_ms)
            if part.arrived:
                self.recompute_s += recompute_s
                self.spared_s += recompute_s


def _seconds(time_ms: float) -> float:
    return time_ms / 1_000.0 if 0 < time_ms < TIME_MS_MAX else 0.0
