"""From the branches along a chain to what each node holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from kvferry.core.leases import tier_order
from kvferry.ids import SHORT_BYTES
from kvferry.index.forest import Path

_T = TypeVar("_T")
Usable = Callable[[str], bool]
"""Whether a node counts."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """How much of a chain a node holds from its first block on, without a hole."""

    node: str
    samples: int
    tier: str
    """The best tier that alone holds it; if it takes several, the least good one that is needed."""


def whole(path: Path, usable: Usable | None, limit: int, turn: int) -> list[Held]:
    """What the runs hold that begin with the chain, longest first, then by name.

    Args:
        path: along the chain from its first sample on.
        usable: which nodes count, asked once each; None for all.
        limit: so many of those that hold most are enough; 0 for all.
        turn: any number; with a limit it chooses among those that hold equally much, of which
            there are as many as nodes where prompts begin alike. A better tier of theirs may then
            go unseen.
    """
    best: dict[str, tuple[int, str]] = {}
    refused: set[str] = set()
    for branch, start, end in reversed(path):
        holders = branch.held.items()
        most = len(best)  # Nobody from here on can hold more than they, or than ``end``.
        for holder, reaches in _turned(holders, turn) if 0 < limit < len(holders) else holders:
            node = holder.node
            reach = start + (reaches if isinstance(reaches, int) else reaches[-1])
            if reach > end:
                reach = end
            known = best.get(node)
            if known is None:
                if node in refused:
                    continue
                if usable is not None and not usable(node):
                    refused.add(node)
                    continue
            elif reach <= known[0] and (
                reach < known[0] or tier_order(known[1]) <= tier_order(holder.tier)
            ):
                continue
            most += reach == end and (known is None or known[0] < end)
            best[node] = reach, holder.tier
            if 0 < limit == most:
                break
        if 0 < limit <= len(best):
            break
    return _sorted([Held(node, end // SHORT_BYTES, tier) for node, (end, tier) in best.items()])


def joined(path: Path, later: Iterable[Path], usable: Usable | None) -> list[Held]:
    """As :func:`whole`, with the runs that begin later and extend what their node holds.

    Such a run promises nothing about the blocks before it, so a hole ends the answer.

    Args:
        path: along the chain from its first sample on.
        later: along the chain from further places on, where runs begin.
        usable: which nodes count; None for all.
    """
    pieces: dict[str, list[_Piece]] = {}
    for one in (path, *later):
        for node, piece in _pieces(one):
            pieces.setdefault(node, []).append(piece)
    return _sorted(
        [
            held
            for node, mine in pieces.items()
            if (usable is None or usable(node)) and (held := _without_hole(node, mine)) is not None
        ]
    )


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """What a holder has of a chain: from where to where, in bytes of joined samples."""

    start: int
    end: int
    tier: str


def _pieces(path: Path) -> Iterator[tuple[str, _Piece]]:
    """For each holder of a run its node and its part."""
    begin = path[0][1]
    seen = set()
    for branch, start, end in reversed(path):
        for holder, reach in branch.reaches():
            if holder not in seen:
                seen.add(holder)
                yield holder.node, _Piece(begin, min(start + reach, end), holder.tier)


def _without_hole(node: str, pieces: Sequence[_Piece]) -> Held | None:
    """What the pieces hold together, in as good tiers as it takes; None without the beginning."""
    most = _reach(pieces)
    if not most:
        return None
    tiers = sorted({piece.tier for piece in pieces}, key=tier_order)
    needed = next(
        tier
        for count, tier in enumerate(tiers, 1)
        if _reach([piece for piece in pieces if piece.tier in tiers[:count]]) == most
    )
    return Held(node, most // SHORT_BYTES, needed)


def _reach(pieces: Sequence[_Piece]) -> int:
    """How far the pieces reach from the beginning without a hole."""
    reach = 0
    for piece in sorted(pieces, key=_by_start):
        if piece.start > reach:
            break
        reach = max(reach, piece.end)
    return reach


def _turned(items: Iterable[_T], turn: int) -> Iterator[_T]:
    """All of them, from another one on each turn."""
    ordered = list(items)
    first = turn % len(ordered)
    return chain(islice(ordered, first, None), islice(ordered, first))


_by_start = attrgetter("start")
_by_name = attrgetter("node")
_by_samples = attrgetter("samples")


def _sorted(found: list[Held]) -> list[Held]:
    """Longest first, then by name."""
    found.sort(key=_by_name)
    found.sort(key=_by_samples, reverse=True)
    return found
