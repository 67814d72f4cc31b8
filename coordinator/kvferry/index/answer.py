"""From the branches along a chain to what each node holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvferry.core.leases import CACHE, HBM, HOST
from kvferry.ids import SHORT_BYTES
from kvferry.index.forest import Branch

Path = Sequence[tuple[Branch, int, int]]
"""As :meth:`kvferry.index.forest.Forest.path` gives it."""
Who = Mapping[int, tuple[str, str]]
"""Holder to (node, tier)."""
Usable = Callable[[str], bool]

_TIER_ORDER = {HBM: 0, CACHE: 1, HOST: 2}
"""The surest and quickest first; one that is not known comes after all others."""


class Held(NamedTuple):
    """How much of a chain a node holds from its first block on, without a hole."""

    node: str
    samples: int
    tier: str
    """Where it lies; the least good tier, if it takes several to hold all of it."""


def whole(path: Path, who: Who, usable: Usable | None, limit: int) -> list[Held]:
    """What the runs hold that begin with the chain, longest first, then by name.

    Args:
        path: along the chain from its first sample on.
        who: holders by number.
        usable: which nodes count, asked once each; None for all.
        limit: enough nodes; of those that hold less, some may be left out. 0 for no limit.
    """
    best: dict[str, tuple[int, str]] = {}
    refused: set[str] = set()
    for branch, start, end in reversed(path):
        for holder, reach in branch.reaches():
            node, tier = who[holder]
            if node in refused:
                continue
            to = min(start + reach, end)
            known = best.get(node)
            if known is None:
                if usable is not None and not usable(node):
                    refused.add(node)
                    continue
            elif to < known[0] or (to == known[0] and _order(known[1]) <= _order(tier)):
                continue
            best[node] = (to, tier)
        if limit and len(best) >= limit:
            break
    return _sorted(Held(node, to // SHORT_BYTES, tier) for node, (to, tier) in best.items())


def joined(path: Path, later: Iterable[Path], who: Who, usable: Usable | None) -> list[Held]:
    """As :func:`whole`, with the runs that begin later and extend what their node holds.

    Such a run promises nothing about the blocks before it, so a hole ends the answer.

    Args:
        path: along the chain from its first sample on.
        later: along the chain from further places on, where runs begin.
        who: holders by number.
        usable: which nodes count; None for all.
    """
    pieces: dict[str, list[tuple[int, int, str]]] = {}
    for one in (path, *later):
        for node, piece in _pieces(one, who):
            pieces.setdefault(node, []).append(piece)
    return _sorted(
        held
        for node, mine in pieces.items()
        if (usable is None or usable(node)) and (held := _without_hole(node, mine)) is not None
    )


def _pieces(path: Path, who: Who) -> Iterable[tuple[str, tuple[int, int, str]]]:
    """For each holder of a run its node, and from where to where in which tier."""
    begin = path[0][1]
    seen: set[int] = set()
    for branch, start, end in reversed(path):
        for holder, reach in branch.reaches():
            if holder not in seen:
                seen.add(holder)
                node, tier = who[holder]
                yield node, (begin, min(start + reach, end), tier)


def _without_hole(node: str, pieces: list[tuple[int, int, str]]) -> Held | None:
    """From the first sample on, as few pieces as it takes; None without the first sample."""
    reach, worst = 0, HBM
    while True:
        longer = [piece for piece in pieces if piece[0] <= reach < piece[1]]
        if not longer:
            return Held(node, reach // SHORT_BYTES, worst) if reach else None
        _, reach, tier = max(longer, key=lambda piece: (piece[1], -_order(piece[2])))
        worst = max(worst, tier, key=_order)


def _order(tier: str) -> int:
    return _TIER_ORDER.get(tier, len(_TIER_ORDER))


def _sorted(found: Iterable[Held]) -> list[Held]:
    return sorted(found, key=lambda held: (-held.samples, held.node))
