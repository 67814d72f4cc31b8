"""A plan: which of the nodes that hold a prefix gives it to a target, when, or why none does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.admission import Load, take_turn
from kvferry.core.inflight import Flow, InFlight, queue_ms, service_ms
from kvferry.core.placement import Ranked, Source, rank, trial
from kvferry.core.sources import source_for
from kvferry.core.state import NodeState, SpaceState
from kvferry.ids import SHORT_BYTES

TOO_DEAR, BUSY = "too_dear", "busy"


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A request that wants its prefix."""

    target: NodeState
    chain: bytes
    """Sampled short hashes, joined."""
    stride: int
    request: str = ""
    """Empty where the target does not say: then it is never told to wait."""
    waited_ms: float = 0.0

    def upto(self, blocks: int = 0) -> bytes:
        """Short hash of the last sampled block among the first ``blocks``, or of all; empty where
        there is none."""
        end = blocks // self.stride * SHORT_BYTES if blocks else len(self.chain)
        return self.chain[end - SHORT_BYTES : end] if 0 < end <= len(self.chain) else b""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A node that holds the first ``blocks`` blocks of the chain."""

    node: NodeState
    blocks: int
    tier: str = "cache"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What is proposed."""

    chosen: tuple[Ranked, ...] = ()
    """Best first."""
    wait_ms: float = 0.0
    """Above 0: ask again after so long, rather than begin with what is chosen."""
    miss: str = ""
    """Why nothing is chosen: ``too_dear`` or ``busy``."""
    dear: Ranked | None = None
    """The best of what was too dear."""
    shared: bool = False
    """Another request of the target brings it already: this one adds nothing to what moves."""
    longest_ms: float = 0.0
    """To compute the longest prefix that anybody holds; 0 while it is not known."""


def plan_prefix(
    space: SpaceState,
    moves: InFlight,
    need: Need,
    holders: Sequence[Holder],
    *,
    now_ms: float,
    weigh: bool = True,
) -> Planned:
    """Choose among ``holders``, of which there is at least one; does not promise anything.

    Args:
        space: what is known.
        moves: what moves now.
        need: who wants what.
        holders: who has it.
        now_ms: the present on the clock of ``moves``.
        weigh: False moves whatever is held, whatever it costs.
    """
    target, prefill = need.target, space.prefill.get(need.target.name)
    arriving = moves.into(target.name, now_ms)
    same = [flow for flow in arriving if _is_of(flow, need)]
    others = [flow for flow in arriving if flow not in same]
    leaving = {
        one.node.name: [f for f in moves.out_of(one.node.name, now_ms) if f not in same]
        for one in holders
    }
    sources = [
        _source(space, target, one, leaving[one.node.name], others, now_ms) for one in holders
    ]
    ranked = rank(sources, block_size=target.block_size, prefill=prefill, target=target.name)
    longest_ms = max(one.recompute_ms or 0.0 for one in ranked)
    # Where costs do not count, neither do the differences between them.
    worth = (
        [one for one in ranked if one.worth]
        if weigh
        else sorted(ranked, key=lambda one: -one.source.blocks)
    )
    if not worth:
        tried = None
        if prefill is not None:
            tried = trial(ranked, block_size=target.block_size, prefill=prefill)
        if tried is None:
            return Planned(miss=TOO_DEAR, dear=ranked[0], longest_ms=longest_ms)
        return Planned(chosen=(tried,), longest_ms=longest_ms)
    if same:
        # One transfer serves all who want it on this node, so this one brings no more load.
        worth.sort(key=lambda one: one.source.node != same[0].source)
        shared = any(flow.request != need.request for flow in same)
        return Planned(chosen=tuple(worth), shared=shared, longest_ms=longest_ms)
    turn = take_turn(
        worth,
        Load(
            leaving=leaving,
            arriving=others,
            coming=_coming(space, moves, need, worth[0], now_ms),
            waiting=moves.waiting(target.name, need.upto(), now_ms),
        ),
        now_ms=now_ms,
        pool_bytes=target.blocks * target.block_bytes,
        waited_ms=need.waited_ms,
    )
    wait_ms = turn.wait_ms if need.request else 0.0
    miss = "" if turn.begin else BUSY
    return Planned(chosen=turn.begin, wait_ms=wait_ms, miss=miss, longest_ms=longest_ms)


def promised(need: Need, chosen: Ranked, now_ms: float) -> Flow:
    """What the plan's answer leads to, for the plans after it."""
    source = chosen.source
    blocks = chosen.limit or source.blocks
    size = blocks * source.block_bytes
    return Flow(
        source=source.node,
        target=need.target.name,
        begun_ms=now_ms,
        service_ms=service_ms(source.link, size),
        blocks=blocks,
        size_bytes=size,
        upto=need.upto(blocks),
        request=need.request,
        promised=True,
    )


def _source(
    space: SpaceState,
    target: NodeState,
    holder: Holder,
    leaving: list[Flow],
    arriving: list[Flow],
    now_ms: float,
) -> Source:
    found = source_for(space, target, holder.node, blocks=holder.blocks, tier=holder.tier)
    if not leaving and not arriving:
        return found
    size = holder.blocks * holder.node.block_bytes
    own_ms = service_ms(found.link, size)
    wait = max(queue_ms(leaving, own_ms, now_ms), queue_ms(arriving, own_ms, now_ms))
    return msgspec.structs.replace(found, queue_ms=wait)


def _coming(
    space: SpaceState, moves: InFlight, need: Need, best: Ranked, now_ms: float
) -> list[Flow]:
    """Transfers to nodes that will hold what the best source holds now."""
    upto = need.upto(best.source.blocks)
    if not upto:
        return []
    return [
        flow
        for flow in moves.bringing(upto, now_ms)
        if flow.target != need.target.name
        and (node := space.nodes.get(flow.target)) is not None
        and not set(node.backends).isdisjoint(need.target.backends)
    ]


def _is_of(flow: Flow, need: Need) -> bool:
    """Whether the flow brings this chain to its target for another request."""
    if not flow.upto or flow.request == need.request:
        return flow.request == need.request and bool(need.request)
    return flow.upto == need.upto(flow.blocks)
