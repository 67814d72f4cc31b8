"""Whether a plan begins now, beside what moves already, or later, when that has ended.

In a fork burst many nodes want one prefix from the one node that has it. Served all at once, each
gets its share of one link, and the last has it no sooner than the first. Served in turn, each that
has it is a source for the others. So a request waits where that costs all of them together less:
until a source is free again, or until another node has got the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.cost import worth_moving
from kvferry.core.inflight import Flow, queue_ms, service_ms
from kvferry.core.placement import Ranked

HEARD_MS = 100.0
"""From the end of a transfer until a coordinator knows of it: nodes tell ten times a second."""
SOURCE_FLOWS_MAX = 8
TARGET_FLOWS_MAX = 4
TARGET_POOL_SHARE = 0.5
"""Of a target's memory for KV: more than that is not filled from other nodes at a time."""
WAIT_STEP_MS_MAX = 250.0
WAITED_MS_MAX = 5_000.0
"""After so long a request waits no more."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What moves at the ends of what is weighed."""

    leaving: dict[str, list[Flow]]
    """By source: what it sends to others."""
    arriving: list[Flow]
    """What the target receives, for other needs than this one."""
    coming: list[Flow]
    """What brings this very prefix, or more of it, to nodes that could then be its source."""
    waiting: int = 0
    """Other requests of the target that wait for their turn."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """When to begin."""

    begin: tuple[Ranked, ...] = ()
    """What may begin now, the best first."""
    wait_ms: float = 0.0
    """Above 0: ask again after so long; it then takes less time in all than to begin now."""


def take_turn(
    worth: Sequence[Ranked],
    load: Load,
    *,
    now_ms: float,
    pool_bytes: int,
    waited_ms: float = 0.0,
) -> Turn:
    """Begin or wait.

    Args:
        worth: sources that are worth moving from, best first; not empty.
        load: what moves already.
        now_ms: the present on the flows' clock.
        pool_bytes: the target's memory for KV; 0 where that is not known.
        waited_ms: for how long this request has waited.
    """
    if _is_full(worth[0], load.arriving, pool_bytes):
        begin: tuple[Ranked, ...] = ()
    else:
        begin = tuple(one for one in worth if len(_leaving(load, one)) < SOURCE_FLOWS_MAX)
    awaited = [*(f for one in worth for f in _leaving(load, one)), *load.coming, *load.arriving]
    # Waiting for longer than computing takes was a mistake, whatever comes of it.
    most_ms = min(WAITED_MS_MAX, worth[0].recompute_ms or WAITED_MS_MAX)
    if not awaited or waited_ms >= most_ms:
        return Turn(begin=begin)
    own_ms = _own_ms(worth[0])
    ahead_ms = load.waiting * own_ms / TARGET_FLOWS_MAX
    first_end_ms = min(flow.left_ms(now_ms) for flow in awaited)
    later_costs = first_end_ms + HEARD_MS + ahead_ms + own_ms
    now_costs = min((_cost_now(one, load, now_ms) for one in begin), default=None)
    if now_costs is not None and now_costs <= later_costs:
        return Turn(begin=begin)
    known = worth[0].move_ms is not None
    if known and not worth_moving(later_costs, worth[0].recompute_ms):
        return Turn(begin=begin)
    return Turn(begin=begin, wait_ms=_step_ms(awaited, now_ms))


def _step_ms(awaited: Sequence[Flow], now_ms: float) -> float:
    """When to ask again: once the first is over and heard of. One that is late may be over."""
    steps = []
    for flow in awaited:
        late_ms = flow.late_ms(now_ms)
        steps.append(HEARD_MS / 2 + (late_ms / 2 if late_ms > 0 else -late_ms))
    return min(*steps, WAIT_STEP_MS_MAX)


def _cost_now(one: Ranked, load: Load, now_ms: float) -> float:
    """Its own time and what it takes from those that move already."""
    own_ms = _own_ms(one)
    takes_ms = queue_ms((*_leaving(load, one), *load.arriving), own_ms, now_ms)
    return own_ms + one.source.queue_ms + takes_ms


def _is_full(one: Ranked, arriving: Sequence[Flow], pool_bytes: int) -> bool:
    """Whether the target receives as much as it should at a time."""
    if len(arriving) >= TARGET_FLOWS_MAX:
        return True
    coming = sum(flow.size_bytes for flow in arriving)
    size = one.source.blocks * one.source.block_bytes
    return bool(arriving and pool_bytes and coming + size > TARGET_POOL_SHARE * pool_bytes)


def _leaving(load: Load, one: Ranked) -> list[Flow]:
    return load.leaving.get(one.source.node, [])


def _own_ms(one: Ranked) -> float:
    """What the move takes on a link of its own."""
    return service_ms(one.source.link, one.source.blocks * one.source.block_bytes)
