"""Which source is best for a prefix, whether any is worth it, and what is worth a trial."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec

from kvferry.core.cost import (
    LinkCost,
    PrefillCost,
    predict_move_ms,
    predict_recompute_ms,
    worth_moving,
)
from kvferry.core.leases import tier_order
from kvferry.core.trials import put_aside

TIE_SHARE = 0.05
"""Gains that differ by less than this share of what is computed otherwise are taken as equal: the
predictions are no better than that, and equals share the load."""
TRIAL_PARTS_MAX, TRIAL_PARTS_MIN = 32, 8
"""A trial moves no more than one of these parts of the prefix: of the first to be cheap, of the
second to be heard above the link's floor."""
TRIAL_BLOCKS_MIN = 8
"""A trial is small, so that nearly every request can pay for one: each that passes without is a
request for which nobody can know that the link has changed."""
TRIAL_LARGER = 4
"""Every other trial is so many times as large where that is paid for: from trials of one size
nobody can tell a link's floor from its rate."""
TRIAL_DOUBT_MAX = 1.0
"""However little is known of small transfers, a trial is not thought cheaper than by that much."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A node that could give the first ``blocks`` blocks of a prompt."""

    node: str
    blocks: int
    block_bytes: int
    tier: str = "cache"
    link: LinkCost | None = None
    """What is known of the way from it to the target."""
    queue_ms: float = 0.0
    """How much longer it takes because of what the two ends move already."""
    moving: bool | None = None
    """The last choice for this pair; None when it was never found too dear."""
    credit_ms: float = 0.0
    """What a trial of this pair may cost beyond computing."""


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A source with its prediction. ``None`` where nothing was learned yet."""

    source: Source
    move_ms: float | None
    """To move its blocks, waiting included."""
    recompute_ms: float | None
    """To compute the tokens that this source would bring."""
    worth: bool
    doubt: float = 0.0
    """Relative standard error of ``move_ms``."""
    limit: int = 0
    """A trial: no more than the first so many blocks; 0 for all."""

    @property
    def gain_ms(self) -> float | None:
        """Time saved; None while a side is unknown."""
        if self.move_ms is None or self.recompute_ms is None:
            return None
        return self.recompute_ms - self.move_ms


def rank(
    sources: Sequence[Source], *, block_size: int, prefill: PrefillCost | None, target: str = ""
) -> list[Ranked]:
    """Sources worth moving from first, best first; then the others, least dear first.

    The best one saves most time. A link that has carried nothing yet is taken to cost nothing but
    the wait: it is tried once, and then it is known. Ties go to more blocks, the better tier, the
    shorter wait; where these are equal too, each target has an order of its own.

    Args:
        sources: who offers how much.
        block_size: tokens in a block.
        prefill: the target's cost of computing.
        target: who asks.
    """
    ranked = [_rate(source, block_size, prefill) for source in sources]
    ranked.sort(key=lambda one: _order(one, target))
    return ranked


def trial(ranked: Sequence[Ranked], *, block_size: int, prefill: PrefillCost) -> Ranked | None:
    """The part of a prefix that is worth moving although all are too dear: it tells how fast the
    link is now, and what was put aside pays for it. None when nothing is."""
    for one in ranked:
        source, link = one.source, one.source.link
        if link is None or source.queue_ms > 0.0:
            continue
        least = _telling_blocks(source, link)
        larger = min(source.blocks // TRIAL_PARTS_MAX, TRIAL_LARGER * least)
        for blocks in (max(least, larger), least) if link.n % 2 else (least,):
            part = _affordable(one, link, blocks, block_size, prefill)
            if part is not None:
                return part
    return None


def _affordable(
    one: Ranked, link: LinkCost, blocks: int, block_size: int, prefill: PrefillCost
) -> Ranked | None:
    """A trial of so many blocks, if what was put aside pays for it."""
    size = blocks * one.source.block_bytes
    move = predict_move_ms(link, size)
    recompute = predict_recompute_ms(prefill, blocks * block_size)
    if move is None or recompute is None:
        return None
    least_ms = move * math.exp(-min(link.doubt(size), TRIAL_DOUBT_MAX))
    credit_ms = one.source.credit_ms + put_aside(recompute * one.source.blocks / blocks)
    if least_ms - recompute > credit_ms:
        return None
    return msgspec.structs.replace(one, move_ms=move, recompute_ms=recompute, limit=blocks)


def _telling_blocks(source: Source, link: LinkCost) -> int:
    """Blocks whose bytes take about as long as the link's floor, so that both are heard."""
    even = math.ceil(min(link.floor_ms() * link.bytes_per_ms(), 1e15) / max(1, source.block_bytes))
    return max(1, min(TRIAL_BLOCKS_MIN, source.blocks), min(even, source.blocks // TRIAL_PARTS_MIN))


def _rate(source: Source, block_size: int, prefill: PrefillCost | None) -> Ranked:
    size = source.blocks * source.block_bytes
    move = predict_move_ms(source.link, size, source.queue_ms)
    recompute = predict_recompute_ms(prefill, source.blocks * block_size)
    doubt = source.link.doubt(size) if source.link is not None else 0.0
    unseen = source.link.unseen(size) if source.link is not None else 0.0
    worth = worth_moving(move, recompute, before=source.moving, unseen=unseen)
    return Ranked(source=source, move_ms=move, recompute_ms=recompute, worth=worth, doubt=doubt)


def _order(ranked: Ranked, target: str) -> tuple[bool, float, int, int, float, bytes, str]:
    source = ranked.source
    cost = source.queue_ms if ranked.move_ms is None else ranked.move_ms
    gain = 0.0
    # Without a prefill rate a longer prefix saves more, whatever a faster link could save.
    if ranked.recompute_ms:
        gain = round((ranked.recompute_ms - cost) / (TIE_SHARE * ranked.recompute_ms))
        gain *= ranked.recompute_ms
    own = hashlib.blake2b(f"{target}>{source.node}".encode(), digest_size=8).digest()
    wait = source.queue_ms if ranked.recompute_ms else cost
    return (
        not ranked.worth,
        -gain,
        -source.blocks,
        tier_order(source.tier),
        wait,
        own,
        source.node,
    )
