"""Where a prompt's prefix could come from, or why from nowhere, as a fold knows it."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.core.cost import PrefillCost
from kvferry.core.messages import Candidate, PlanAnswer, PlanRequest
from kvferry.core.placement import Ranked
from kvferry.core.planning import Holder, Need, plan_prefix, promised
from kvferry.core.state import JOINED, MODE_OBSERVE, MODE_ON, MODE_PAUSED, NodeState, SpaceState
from kvferry.ids import SHORT_BYTES, sample_stride
from kvferry.index.folded import Folded
from kvferry.index.moves import Moves

CANDIDATES_MAX = 8
SOURCES_MAX = 32
"""Holders that are weighed, those with the longest prefix."""


class Planner:
    """Answers from memory alone: nothing in here waits for anything.

    Args:
        replica: who answers.
        folded: what is known; followed for what moves.
        weigh: whether moving is weighed against computing where the space's leader does not say;
            otherwise whatever is held is proposed, whatever it costs.
        clock: seconds; a replay's stands where the ledger stood.
    """

    def __init__(
        self,
        replica: str,
        folded: Folded,
        *,
        weigh: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._fold = folded
        self._weigh = weigh
        self._moves = Moves(folded, clock=clock)

    def answer(self, request: PlanRequest) -> PlanAnswer:
        """The plan for one prompt.

        Raises:
            ValueError: the hashes are not a whole number of short hashes.
        """
        state = self._fold.state
        space = state.spaces.get(request.space)
        asker = space.nodes.get(request.node) if space is not None else None
        if space is None or asker is None or asker.status != JOINED:
            return self._miss("not_joined")
        mode = space.mode_of(request.node)
        if mode == MODE_PAUSED:
            return self._miss("paused", mode)
        stride = sample_stride(asker.block_size) if asker.block_size > 0 else 0
        if (request.block_size, request.stride) != (asker.block_size, stride):
            return self._miss("space_mismatch", mode)
        if len(request.hashes) % SHORT_BYTES:
            raise ValueError(f"{len(request.hashes)} bytes are no whole number of short hashes")
        if not request.hashes:
            return self._miss("too_short", mode)
        nodes = space.nodes

        def usable(name: str) -> bool:
            node = nodes.get(name)
            return (
                node is not None
                and name != asker.name
                and _can_serve(node, asker)
                and _may_serve(space.mode_of(name), mode)
            )

        held = self._fold.index.space(request.space).holders(
            request.hashes, usable=usable, limit=SOURCES_MAX
        )
        if not held:
            prefill_ms = _whole_ms(space.prefill.get(asker.name), request)
            return self._miss("nothing_held", mode, prefill_ms)
        holders = [
            Holder(node=nodes[one.node], blocks=one.samples * stride, tier=one.tier) for one in held
        ]
        return self._choose(request, space, asker, holders, mode)

    def _choose(
        self,
        request: PlanRequest,
        space: SpaceState,
        asker: NodeState,
        holders: list[Holder],
        mode: str,
    ) -> PlanAnswer:
        """What is worth moving, the largest expected gain first."""
        # Whoever asks before it heard that it only observes must not pull either.
        observing = mode == MODE_OBSERVE
        need = Need(
            target=asker,
            chain=request.hashes,
            stride=request.stride,
            request="" if observing else request.request,
            waited_ms=request.waited_ms,
        )
        moves, now_ms = self._moves.of(request.space), self._moves.now_ms()
        weigh = space.weighs(self._weigh)
        planned = plan_prefix(space, moves, need, holders, now_ms=now_ms, weigh=weigh)
        if need.request and planned.wait_ms:
            moves.wait(asker.name, need.request, need.upto(), now_ms + planned.wait_ms)
        elif need.request and planned.chosen and not planned.shared:
            moves.promise(promised(need, planned.chosen[0], now_ms))
        chosen = tuple(_candidate(space, one) for one in planned.chosen[:CANDIDATES_MAX])
        return PlanAnswer(
            replica=self._replica,
            candidates=() if observing else chosen,
            observed=chosen if observing else (),
            dear=(_candidate(space, planned.dear),) if planned.dear is not None else (),
            recompute_ms=planned.longest_ms,
            prefill_ms=_whole_ms(space.prefill.get(asker.name), request),
            wait_ms=planned.wait_ms,
            miss=MODE_OBSERVE if observing and chosen else planned.miss,
            mode=mode,
            position=self._fold.state.position,
        )

    def _miss(self, word: str, mode: str = MODE_ON, prefill_ms: float = 0.0) -> PlanAnswer:
        return PlanAnswer(
            replica=self._replica,
            prefill_ms=prefill_ms,
            miss=word,
            mode=mode,
            position=self._fold.state.position,
        )


def _can_serve(source: NodeState, asker: NodeState) -> bool:
    """Whether the source is there and shares a backend with the asker."""
    return source.status == JOINED and not set(source.backends).isdisjoint(asker.backends)


def _may_serve(source_mode: str, asker_mode: str) -> bool:
    """A source that only observes counts for askers that only observe: nothing moves for them."""
    return source_mode == MODE_ON or source_mode == asker_mode == MODE_OBSERVE


def _whole_ms(prefill: PrefillCost | None, request: PlanRequest) -> float:
    """To compute the whole prompt; 0 while it is not known."""
    took = prefill.predict(request.prompt_tokens) if prefill is not None else None
    return took or 0.0


def _candidate(space: SpaceState, ranked: Ranked) -> Candidate:
    source = ranked.source
    node = space.nodes[source.node]
    return Candidate(
        node=node.name,
        address=node.address,
        incarnation=node.incarnation,
        blocks=ranked.limit or source.blocks,
        tier=source.tier,
        predicted_ms=ranked.move_ms or 0.0,
        recompute_ms=ranked.recompute_ms or 0.0,
        queue_ms=source.queue_ms,
        doubt=ranked.doubt if ranked.move_ms is not None else 0.0,
        limit=ranked.limit,
    )
