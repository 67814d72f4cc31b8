"""Whether what this engine lacks of a hinted prefix is worth moving.

A hint names a prefix from the prompt's first block on, but the engine often has most of it in its
own cache. How much that is, only the scheduler's question tells, and then it is the rest that
counts.
"""

from __future__ import annotations

from kvferry.core.placement import TRIAL_BLOCKS_MIN
from kvferry.core.trials import put_aside
from kvferry.node.plans.client import PlanClient
from kvferry_connectors.vllm.tracked import Pull, Tracked

HINT = "hint"
"""The basis of a pull that a hint named."""
SOURCES_MAX = 1_024
"""Nodes for whose links something is put aside; the oldest is forgotten."""


class Remainders:
    """Weighs the rests of hinted prefixes. Engine thread only.

    A link that carries nothing teaches nothing, and no plan tries one for a rest. So of each rest
    that is computed a small share is put aside, and where that pays for it a few blocks are moved.
    """

    def __init__(self, plans: PlanClient, block_size: int) -> None:
        self._plans = plans
        self._block_size = block_size
        self._aside_ms: dict[str, float] = {}
        """By source."""

    def too_dear(self, tracked: Tracked, pull: Pull, local_tokens: int) -> bool:
        """Whether what the pull adds to the local tokens is thought faster computed than moved.

        Said once for so many local tokens. Without local ones it is :meth:`Looker.too_dear`'s to
        say, and without a coordinator a hint is followed whatever was advised.
        """
        if pull.basis != HINT or not local_tokens or pull.tried:
            return False
        if local_tokens == pull.weighed_from:
            return False
        if not self._plans.available():
            return False
        end = min(pull.granted, tracked.prompt_blocks) * self._block_size
        weighed = self._plans.advice.rest(pull.source, local_tokens, end)
        if weighed is None:
            return False
        rest, tracked.position = weighed
        pull.weighed_from = local_tokens
        pull.predicted_ms, pull.recompute_ms = rest.move_ms, rest.recompute_ms
        return not rest.pays and not self._try(pull, local_tokens, end)

    def _try(self, pull: Pull, local_tokens: int, end: int) -> bool:
        """Whether the pull becomes a trial: the first few blocks of what was too dear."""
        stop = min(end, local_tokens + TRIAL_BLOCKS_MIN * self._block_size)
        weighed = self._plans.advice.rest(pull.source, local_tokens, stop)
        if weighed is None:
            return False
        part, _ = weighed
        extra_ms = part.move_ms - part.recompute_ms
        aside_ms = self._aside_ms.get(pull.source, 0.0) + put_aside(pull.recompute_ms)
        if aside_ms < extra_ms:
            self._put_aside(pull.source, aside_ms)
            return False
        self._aside_ms.pop(pull.source, None)
        pull.tried, pull.granted = True, stop // self._block_size
        pull.predicted_ms, pull.recompute_ms = part.move_ms, part.recompute_ms
        return True

    def _put_aside(self, source: str, time_ms: float) -> None:
        if source not in self._aside_ms and len(self._aside_ms) >= SOURCES_MAX:
            del self._aside_ms[next(iter(self._aside_ms))]
        self._aside_ms[source] = time_ms
