"""The plan service: where a prompt's prefix could come from, or why from nowhere."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from kvferry.core.cost import link_rate
from kvferry.core.messages import Candidate, PlanAnswer, PlanRequest, encode
from kvferry.core.placement import Ranked, Source, rank
from kvferry.core.state import JOINED, MODE_OBSERVE, MODE_ON, MODE_PAUSED, NodeState, SpaceState
from kvferry.daemon.projector import Projector
from kvferry.ids import sample_stride, unpack_short
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.daemon")

CANDIDATES_MAX = 8
PAIRS_MAX = 4_096
"""(source, asker) pairs whose last decision is remembered for hysteresis."""
TIMINGS_MAX = 2_048
PROBE_EVERY_S = 10.0
"""A pair that is found too dear moves something all the same once in so long: a link that carries
nothing teaches nothing, and would stay dear for ever after one bad minute."""

_REQUESTS = msgspec.msgpack.Decoder(PlanRequest)


class PlanService:
    """Answers from memory alone: nothing in here waits for anything."""

    def __init__(
        self,
        replica: str,
        projector: Projector,
        *,
        weigh: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answered = 0
        self.malformed = 0
        self._replica = replica
        self._projector = projector
        self._weigh = weigh
        self._clock = clock
        self._before: dict[tuple[str, str, str], bool] = {}
        self._dear_since: dict[tuple[str, str, str], float] = {}
        self._took_us: deque[float] = deque(maxlen=TIMINGS_MAX)

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One message on ``plan_subject(replica)``."""
        if reply is None:
            return
        begun = time.perf_counter()
        try:
            answer = self.answer(_REQUESTS.decode(data))
        except (msgspec.DecodeError, ValueError) as error:
            # The asker's deadline ends its wait; an answer would have to guess what it asked.
            self.malformed += 1
            log.warning("a plan request on %s cannot be read: %s", subject, error)
            return
        self._took_us.append((time.perf_counter() - begun) * 1e6)
        self.answered += 1
        await reply(encode(answer))

    def answer(self, request: PlanRequest) -> PlanAnswer:
        """The plan for one prompt.

        Raises:
            ValueError: the hashes are not a whole number of short hashes.
        """
        state = self._projector.state
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
        chain = unpack_short(request.hashes)
        if not chain:
            return self._miss("too_short", mode)
        held = self._projector.index.space(request.space).lookup(chain, request.node)
        offers = [
            (node, samples * stride)
            for name, samples in held
            if (node := space.nodes.get(name)) is not None
            and _can_serve(node, asker)
            and _may_serve(space.mode_of(name), mode)
        ]
        if not offers:
            return self._miss("nothing_held", mode)
        return self._choose(request, space, asker, offers, mode)

    def timings_us(self) -> dict[str, float]:
        """p50 and p99 of the last answers' own time, in microseconds; empty before the first."""
        took = sorted(self._took_us)
        if not took:
            return {}
        return {"p50": took[len(took) // 2], "p99": took[min(len(took) - 1, len(took) * 99 // 100)]}

    def _choose(
        self,
        request: PlanRequest,
        space: SpaceState,
        asker: NodeState,
        offers: list[tuple[NodeState, int]],
        mode: str,
    ) -> PlanAnswer:
        """What is worth moving, the largest expected gain first."""
        ranked = rank(
            [
                Source(
                    node=node.name,
                    blocks=blocks,
                    block_bytes=node.block_bytes,
                    link=link_rate(
                        space.rates,
                        node.name,
                        asker.name,
                        tuple(name for name in asker.backends if name in node.backends),
                    ),
                )
                for node, blocks in offers
            ],
            block_size=asker.block_size,
            prefill=space.prefill.get(asker.name),
            before={
                node.name: self._before[key]
                for node, _ in offers
                if (key := (request.space, node.name, asker.name)) in self._before
            },
        )
        for one in ranked:
            if one.gain_ms is not None:
                self._remember((request.space, one.source.node, asker.name), one.worth)
        longest_ms = max(one.recompute_ms or 0.0 for one in ranked)
        worth = [one for one in ranked if one.worth] if self._weigh else ranked
        if not worth and self._probe_is_due((request.space, ranked[0].source.node, asker.name)):
            worth = ranked[:1]
        if not worth:
            return self._miss("too_dear", mode, longest_ms)
        # Whoever asks before it heard that it only observes must not pull either.
        observing = mode == MODE_OBSERVE
        chosen = tuple(_candidate(space, one) for one in worth[:CANDIDATES_MAX])
        return PlanAnswer(
            replica=self._replica,
            candidates=() if observing else chosen,
            observed=chosen if observing else (),
            recompute_ms=longest_ms,
            miss=MODE_OBSERVE if observing else "",
            mode=mode,
            position=self._projector.state.position,
        )

    def _probe_is_due(self, pair: tuple[str, str, str]) -> bool:
        now = self._clock()
        since = self._dear_since.setdefault(pair, now)
        if now - since < PROBE_EVERY_S:
            if len(self._dear_since) > PAIRS_MAX:
                del self._dear_since[next(iter(self._dear_since))]
            return False
        self._dear_since[pair] = now
        return True

    def _remember(self, pair: tuple[str, str, str], worth: bool) -> None:
        self._before.pop(pair, None)
        self._before[pair] = worth
        if len(self._before) > PAIRS_MAX:
            del self._before[next(iter(self._before))]

    def _miss(self, word: str, mode: str = MODE_ON, recompute_ms: float = 0.0) -> PlanAnswer:
        return PlanAnswer(
            replica=self._replica,
            recompute_ms=recompute_ms,
            miss=word,
            mode=mode,
            position=self._projector.state.position,
        )


def _can_serve(source: NodeState, asker: NodeState) -> bool:
    """Whether the source is there and shares a backend with the asker."""
    return source.status == JOINED and not set(source.backends).isdisjoint(asker.backends)


def _may_serve(source_mode: str, asker_mode: str) -> bool:
    """A source that only observes counts for askers that only observe: nothing moves for them."""
    return source_mode == MODE_ON or source_mode == asker_mode == MODE_OBSERVE


def _candidate(space: SpaceState, ranked: Ranked) -> Candidate:
    node = space.nodes[ranked.source.node]
    return Candidate(
        node=node.name,
        address=node.address,
        incarnation=node.incarnation,
        blocks=ranked.source.blocks,
        tier=ranked.source.tier,
        predicted_ms=ranked.move_ms or 0.0,
    )
