"""Which source is best for a prefix, and whether any is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvferry.core.cost import Rate, predict_move_ms, predict_recompute_ms, worth_moving

_TIER_ORDER = {"hbm": 0, "cache": 1, "host": 2}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A node that could give the first ``blocks`` blocks of a prompt."""

    node: str
    blocks: int
    block_bytes: int
    tier: str = "cache"
    link: Rate | None = None
    """What is known of the way from it to the target."""
    queue_ms: float = 0.0
    """Wait before it could begin."""


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A source with its prediction. ``None`` where nothing was learned yet."""

    source: Source
    move_ms: float | None
    recompute_ms: float | None
    """To compute the tokens that this source would bring."""
    worth: bool

    @property
    def gain_ms(self) -> float | None:
        """Time saved; None while a side is unknown."""
        if self.move_ms is None or self.recompute_ms is None:
            return None
        return self.recompute_ms - self.move_ms


def rank(
    sources: Sequence[Source],
    *,
    block_size: int,
    prefill: Rate | None,
    before: Mapping[str, bool] | None = None,
) -> list[Ranked]:
    """Sources worth moving from first, best first; then the others, least dear first.

    The best one saves most time. A link that has carried nothing yet is taken to cost nothing:
    it is tried once, and then it is known. Ties go to more blocks, the better tier, the name.

    Args:
        sources: who offers how much.
        block_size: tokens in a block.
        prefill: the target's prefill rate (tokens per second).
        before: last decision by source node, for hysteresis.
    """
    last = before or {}
    ranked = []
    for source in sources:
        move = predict_move_ms(source.link, source.blocks * source.block_bytes, source.queue_ms)
        recompute = predict_recompute_ms(prefill, source.blocks * block_size)
        worth = worth_moving(move, recompute, before=last.get(source.node))
        ranked.append(Ranked(source=source, move_ms=move, recompute_ms=recompute, worth=worth))
    ranked.sort(key=_order)
    return ranked


def _order(ranked: Ranked) -> tuple[bool, float, int, float, int, str]:
    source = ranked.source
    saved = (ranked.recompute_ms or 0.0) - (ranked.move_ms or 0.0)
    # Without a prefill rate a longer prefix saves more, whatever a faster link could save.
    gain = saved if ranked.recompute_ms is not None else 0.0
    tier = _TIER_ORDER.get(source.tier, len(_TIER_ORDER))
    return (not ranked.worth, -gain, -source.blocks, ranked.move_ms or 0.0, tier, source.node)
