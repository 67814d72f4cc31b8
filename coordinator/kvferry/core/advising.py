"""What a leader works out of its fold for the nodes of a space: what hits spare, what pays."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.core.cost import PrefillCost, link_cost, pays_from
from kvferry.core.messages import SAVED_UNKNOWN
from kvferry.core.state import JOINED, SpaceState


def pair_pays_from(space: SpaceState, pair: str) -> int:
    """The shortest prefix in tokens that is worth moving over ``source>target``; 0 where even a
    short one is, or where too little is known."""
    source_name, _, target_name = pair.partition(">")
    source, target = space.nodes.get(source_name), space.nodes.get(target_name)
    prefill = space.prefill.get(target_name)
    if source is None or target is None or prefill is None or not target.block_size:
        return 0
    if source is target or source.status != JOINED or target.status != JOINED:
        return 0
    choice, past = space.choices.get(pair), space.trials.get(pair)
    chosen = choice.backend if choice is not None else ""
    link = link_cost(space.rates, source_name, target_name, target.backends, chosen)
    if link is None:
        return 0
    before = past.moving if past is not None else None
    return pays_from(link, prefill, source.block_bytes / target.block_size, before=before)


def saved(costs: Iterable[PrefillCost]) -> tuple[float, float]:
    """What a hit spares over all nodes, as :attr:`kvferry.core.messages.Advice.saved` says, each
    weighing as much as it has observed; :data:`~kvferry.core.messages.SAVED_UNKNOWN` while nothing
    was, or computing seems to cost nothing."""
    known = [
        (cost.n, one, two)
        for cost in costs
        if (one := cost.saved_ms(0, 1_000)) is not None
        and (two := cost.saved_ms(0, 2_000)) is not None
    ]
    total = sum(n for n, _, _ in known)
    first = sum(n * one for n, one, _ in known) / total if total else 0.0
    if first <= 0.0:
        return SAVED_UNKNOWN
    second = sum(n * (two - one) for n, one, two in known) / total
    return first, max(0.0, second - first)


def spared_ms(saved: tuple[float, float], tokens: int) -> float:
    """What a hit of the first ``tokens`` tokens of a prompt spares, by such an advice."""
    first, growth = saved
    thousands = tokens / 1_000
    return first * thousands + growth * thousands * max(0.0, thousands - 1.0) / 2
