"""Finding a prefix: hints proved or pinned, plans asked for, pins made on threads of our own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

import msgspec

from kvferry.core.messages import PlanAnswer, PlanRequest
from kvferry.errors import PeerRefused, PeerUnreachable
from kvferry.ids import sample_stride, short_hashes
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.hints import Hint
from kvferry.node.peers.wire import Abort, Granted, Pin, Renew
from kvferry.node.plans.client import PlanClient
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.remainders import HINT, Remainders
from kvferry_connectors.vllm.taking import (
    take_hint,
    take_observed,
    take_plan,
    take_reason,
)
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

log = logging.getLogger("kvferry.vllm")

OBSERVE = "observe"
"""The mode, the miss, and the tier of a hint that says what could be had but must not be used."""

HANDOVER = "handover"
"""The basis of a pull whose blocks the source still computes. It begins without a pin."""

WAITED_MS_MAX = 10_000.0
"""A request that has waited for its turn so long goes by the next plan as it is."""

REFUSALS = {
    "incarnation": "node_left",
    "ended": "not_offered",
    "not_held": "not_offered",
    "not_ready": "not_offered",
    "paused": "paused",
    "space_mismatch": "space_mismatch",
    "bad_key": "bad_hint",
}
"""A source's refusal as the miss that the ledger records."""


class Looker:
    """Looks for prefixes. ``use_hint``, ``ask_plan``, ``abort`` and ``renew`` return at once."""

    def __init__(
        self,
        options: Options,
        outbox: Outbox,
        plans: PlanClient,
        pool: Executor,
        *,
        block_size: int,
        ranks: int,
    ) -> None:
        self._options = options
        self._outbox = outbox
        self._plans = plans
        self._pool = pool
        self._block_size = block_size
        self._ranks = ranks
        self.remainders = Remainders(plans, block_size)

    def has_plans(self) -> bool:
        """Whether a coordinator is there to be asked."""
        return self._plans.available()

    def too_dear(self, hint: Hint) -> bool:
        """Whether what the hint offers is thought faster computed than moved, by a coordinator that
        can be asked: its plan then knows other sources, and may try the link all the same."""
        dear = self._plans.advice.too_dear(hint.node, hint.blocks * self._block_size)
        return dear and self._plans.available()

    def spared(self, tracked: Tracked, local_tokens: int) -> str:
        """Why a plan could bring nothing beyond the local tokens; empty where it has to be asked.

        Plans know one block in 128 tokens, and the coordinator has told which of these are held.
        """
        stride = sample_stride(self._block_size)
        first = local_tokens // (stride * self._block_size)
        if first >= tracked.prompt_blocks // stride:
            return "local" if local_tokens else "too_short"
        if self._plans.held.lacks(tracked.hashes[(first + 1) * stride - 1]):
            return "local" if local_tokens else "nothing_held"
        return ""

    def spare(self, tracked: Tracked) -> None:
        """No plan is waited for, because of what the coordinator has told."""
        tracked.told, tracked.position = True, self._plans.held.position

    def use_hint(self, tracked: Tracked, pull: Pull, hint: Hint) -> None:
        """Pin what a hint names; a hint whose tail is the prompt's own needs no answer."""
        proved = take_hint(tracked, pull, hint)
        if self._plans.available():  # Else it is followed whatever was advised.
            tracked.position = self._plans.advice.position
        if proved:
            # Equal tail hashes prove the whole prefix, so the answer needs no round trip; the
            # workers repeat this pin when the blocks are allocated.
            pull.state = PullState.READY
        self._pool.submit(self._pin, tracked, pull, proved)

    def predict(self, tracked: Tracked, pull: Pull) -> None:
        """Note for the ledger what a pull by a hint is thought to take, if it was not weighed."""
        end = pull.granted * self._block_size
        if pull.basis == HINT and not pull.weighed_from and end > tracked.local_tokens:
            pull.predicted_ms, pull.recompute_ms = self._plans.advice.predicted(
                pull.source, tracked.local_tokens, end
            )

    def follow(self, tracked: Tracked, pull: Pull, hint: Hint) -> None:
        """Follow the prefill of this prompt at the hint's node; the hint only proves who it is."""
        pull.basis, pull.source = HANDOVER, hint.node
        pull.address, pull.incarnation = hint.address, hint.incarnation
        self._pool.submit(self._follow, tracked, pull)

    def leave(self, pull: Pull) -> None:
        """Follow no longer: the blocks are being loaded, or are not wanted."""
        if pull.following is not None and pull.joined is not None:
            pull.joined.follower.leave(pull.following)

    def ask_plan(self, tracked: Tracked, pull: Pull) -> None:
        """Ask the coordinator who holds the prompt's prefix, then pin there."""
        self._ask(tracked, pull, self._plan_request(tracked, pull))

    def _ask(self, tracked: Tracked, pull: Pull, request: PlanRequest) -> None:
        def done(answer: PlanAnswer | None, miss: str) -> None:
            if pull.cancelled:
                return
            if answer is not None and self._waits(tracked, pull, request, answer):
                return
            if answer is not None:
                tracked.position, tracked.waited_ms = answer.position, request.waited_ms
            if answer is None or not answer.candidates:
                if answer is not None:
                    take_reason(pull, answer)
                self._fail(tracked, pull, pull.miss or (answer.miss if answer else miss))
                return
            take_plan(pull, answer, answer.candidates)
            self._pool.submit(self._pin, tracked, pull, False)

        if not pull.cancelled:
            self._plans.ask(request, done)

    def _waits(
        self, tracked: Tracked, pull: Pull, request: PlanRequest, answer: PlanAnswer
    ) -> bool:
        """Whether it is not our turn yet: then we ask again when the coordinator says."""
        if answer.wait_ms <= 0 or request.waited_ms >= WAITED_MS_MAX:
            return False
        again = msgspec.structs.replace(request, waited_ms=request.waited_ms + answer.wait_ms)
        most_ms = answer.wait_ms + self._options.plan_deadline_ms + self._options.pin_timeout_ms
        pull.answer_by = time.monotonic() + most_ms / 1000
        return self._plans.later(answer.wait_ms, lambda: self._ask(tracked, pull, again))

    def observe_plan(self, tracked: Tracked, pull: Pull, known: Callable[[], None]) -> None:
        """Ask the coordinator what it would choose; ``known`` is called once, on our thread."""

        def done(answer: PlanAnswer | None, miss: str) -> None:
            if answer is not None:
                tracked.position = answer.position
            # With candidates, policy changed and we have not heard of it yet.
            chosen = (answer.observed or answer.candidates) if answer is not None else ()
            if answer is not None and chosen:
                take_observed(pull, answer, chosen)
            pull.miss = pull.miss or (OBSERVE if chosen else answer.miss if answer else miss)
            known()

        self._plans.ask(self._plan_request(tracked, pull), done)

    def abort(self, pull: Pull, why: str) -> None:
        """Tell the source that its pin is not needed."""
        if pull.address and pull.basis != HANDOVER:
            self._pool.submit(self._tell, pull, Abort(transfer=pull.transfer, why=why))

    def renew(self, pull: Pull) -> None:
        """Keep the pin while the request waits for blocks."""
        frame = Renew(transfer=pull.transfer, deadline_ms=self._options.pin_ms)
        self._pool.submit(self._tell, pull, frame)

    def unreserve(self, pull: Pull) -> None:
        """Give the outcome's slot back, once, whoever comes first."""
        try:
            pull.slots.pop()  # Atomic: two threads may give up one pull at the same moment.
        except IndexError:
            return
        self._outbox.unreserve()

    def _plan_request(self, tracked: Tracked, pull: Pull) -> PlanRequest:
        joined = pull.joined
        assert joined is not None
        stride = sample_stride(self._block_size)
        return PlanRequest(
            space=joined.space,
            node=joined.node,
            hashes=short_hashes(tracked.hashes[: tracked.prompt_blocks], stride),
            stride=stride,
            block_size=self._block_size,
            prompt_tokens=tracked.prompt_tokens,
            request=tracked.id,
        )

    # --- our threads ------------------------------------------------------------------------

    def _follow(self, tracked: Tracked, pull: Pull) -> None:
        assert pull.joined is not None
        blocks = tracked.prompt_blocks
        pull.following = pull.joined.follower.follow(
            pull.address,
            pull.incarnation,
            tracked.params.follow,
            blocks,
            bytes(tracked.hashes[blocks - 1]),
        )
        if pull.cancelled:
            self.leave(pull)

    def _pin(self, tracked: Tracked, pull: Pull, proved: bool) -> None:
        assert pull.joined is not None
        frame = Pin(
            transfer=pull.transfer,
            incarnation=pull.incarnation,
            hashes=tuple(tracked.hashes[: pull.limit or tracked.prompt_blocks]),
            deadline_ms=self._options.pin_ms,
            ranks=self._ranks,
            host=pull.joined.reads_host,
        )
        try:
            answer = pull.joined.client.call(
                pull.address,
                frame,
                timeout_s=self._options.pin_timeout_ms / 1000,
                incarnation=pull.incarnation,
            )
        except PeerRefused as refused:
            if refused.reason == "space_mismatch":
                log.warning("node %s refused us: %s", pull.source, refused.detail)
            self._pin_failed(tracked, pull, proved, REFUSALS.get(refused.reason, "bad_hint"))
            return
        except PeerUnreachable as error:
            gone = isinstance(error.__cause__, ConnectionRefusedError)
            miss = "node_left" if gone else "peer_unreachable"
            self._pin_failed(tracked, pull, proved, miss)
            return
        if not isinstance(answer, Granted):
            self._pin_failed(tracked, pull, proved, "peer_unreachable")
            return
        pull.pinned_at = time.monotonic()
        if pull.cancelled:
            self._tell(pull, Abort(transfer=pull.transfer, why="cancelled"))
        elif not proved:
            pull.granted = len(answer.blocks)
            if pull.granted < min(pull.hinted, tracked.prompt_blocks):
                pull.miss = f"diverged@{pull.granted * self._block_size}"
            pull.state = PullState.READY

    def _pin_failed(self, tracked: Tracked, pull: Pull, proved: bool, miss: str) -> None:
        pull.miss = pull.miss or miss
        if proved:
            return  # Answered already: the workers meet the same refusal and report it.
        if pull.basis == HINT and self._plans.available() and not pull.cancelled:
            self.ask_plan(tracked, pull)
            return
        self._fail(tracked, pull, pull.miss)

    def _fail(self, tracked: Tracked, pull: Pull, miss: str) -> None:
        if pull.cancelled:
            return
        tracked.miss = miss or "nothing_held"
        self.unreserve(pull)
        pull.state = PullState.ENDED

    def _tell(self, pull: Pull, frame: Abort | Renew) -> None:
        assert pull.joined is not None
        try:
            pull.joined.client.call(
                pull.address, frame, timeout_s=self._options.pin_timeout_ms / 1000
            )
        except (PeerRefused, PeerUnreachable) as error:
            # Best effort: the pin's own deadline ends it at the source.
            log.debug("%s for %s: %s", type(frame).__name__, pull.transfer, error)
