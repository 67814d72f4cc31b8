"""What a leader works out of its fold for the nodes of a space: what hits spare, what pays, what
moving and computing take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvferry.core.cost import LinkCost, PrefillCost, link_cost, pays_from, worth_moving
from kvferry.core.messages import SAVED_UNKNOWN
from kvferry.core.state import JOINED, NodeState, SpaceState

LINKS_MAX = 1_000
"""Pairs of a space whose cost is told: each node reads them all."""


def pair_pays_from(space: SpaceState, pair: str) -> int:
    """The shortest prefix in tokens that is worth moving over ``source>target``; 0 where even a
    short one is, or where too little is known."""
    known = _pair(space, pair)
    prefill = space.prefill.get(known.target.name) if known is not None else None
    if known is None or prefill is None:
        return 0
    past = space.trials.get(pair)
    before = past.moving if past is not None else None
    return pays_from(known.link, prefill, known.token_bytes, before=before)


def pair_link(space: SpaceState, pair: str) -> tuple[float, float] | None:
    """What :attr:`kvferry.core.messages.Advice.links` says of ``source>target``; None where
    nothing is known."""
    known = _pair(space, pair)
    if known is None:
        return None
    floor_ms = known.link.floor_ms()
    return floor_ms, (known.link.predict(1_000 * known.token_bytes) or floor_ms) - floor_ms


def computing(costs: Mapping[str, PrefillCost]) -> dict[str, tuple[float, float]]:
    """What :attr:`kvferry.core.messages.Advice.computing` says."""
    return {node: _computing(cost) for node, cost in costs.items() if cost.n}


def _computing(cost: PrefillCost) -> tuple[float, float]:
    return cost.fit.coefficients[1], cost.fit.coefficients[2]


def move_ms(link: tuple[float, float], tokens: int) -> float:
    """What moving so many tokens takes, by such an advice; no queue is in it."""
    return link[0] + link[1] * tokens / 1_000


def recompute_ms(computing: tuple[float, float], start: int, end: int) -> float:
    """What computing tokens ``start`` to ``end`` takes, by such an advice."""
    return computing[0] * (end - start) / 1e3 + computing[1] * (end * end - start * start) / 2e6


class Rest(NamedTuple):
    """What a node lacks of a prefix that another one holds, weighed."""

    move_ms: float
    """To move it, without any queue; 0 where that is not known."""
    recompute_ms: float
    """To compute it; 0 where that is not known."""
    pays: bool
    """Whether to move it."""


def weigh_rest(
    link: tuple[float, float] | None, computing: tuple[float, float] | None, start: int, end: int
) -> Rest:
    """Whether tokens ``start`` to ``end`` of a prompt are worth moving to a node that has those
    before them.

    Who has a hint needs no plan, so it is followed unless computing is better by the hysteresis;
    and where a side is not known.

    Args:
        link: as :attr:`kvferry.core.messages.Advice.links` says; None where it does not.
        computing: as :attr:`kvferry.core.messages.Advice.computing` says; None where it does not.
        start: tokens that the node has.
        end: tokens that the other one holds.
    """
    moving_ms = move_ms(link, end - start) if link is not None else 0.0
    computing_ms = recompute_ms(computing, start, end) if computing is not None else 0.0
    pays = worth_moving(moving_ms or None, computing_ms or None, before=True)
    return Rest(moving_ms, computing_ms, pays)


def pair_rest(space: SpaceState, pair: str, start: int, end: int) -> Rest:
    """:func:`weigh_rest` by what a leader that knows just this tells of ``source>target``."""
    cost = space.prefill.get(pair.rpartition(">")[2])
    told = _computing(cost) if cost is not None and cost.n else None
    return weigh_rest(pair_link(space, pair), told, start, end)


class _Known(NamedTuple):
    target: NodeState
    link: LinkCost
    token_bytes: float


def _pair(space: SpaceState, pair: str) -> _Known | None:
    """Two nodes that are there, and what moving between them costs."""
    source_name, _, target_name = pair.partition(">")
    source, target = space.nodes.get(source_name), space.nodes.get(target_name)
    if source is None or target is None or source is target or not target.block_size:
        return None
    if source.status != JOINED or target.status != JOINED:
        return None
    choice = space.choices.get(pair)
    chosen = choice.backend if choice is not None else ""
    link = link_cost(space.rates, source_name, target_name, target.backends, chosen)
    return _Known(target, link, source.block_bytes / target.block_size) if link else None


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
