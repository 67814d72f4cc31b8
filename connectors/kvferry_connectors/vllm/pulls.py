"""The target's side: where a request's prefix could come from, and whether to fetch it.

``begin``, ``answer``, ``commit`` and ``drop`` run on the engine thread and never touch the
network; pins are made on threads of our own, plans on the node agent's.
"""

from __future__ import annotations

import itertools
import logging
import time

from kvferry.core.events import TransferFailed, Transferred
from kvferry.ids import sample_stride
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.hints import Hint, HintRefused
from kvferry_connectors.vllm.handovers import Handovers, Step
from kvferry_connectors.vllm.joined import Joined
from kvferry_connectors.vllm.loading import Loads
from kvferry_connectors.vllm.looking import HANDOVER, OBSERVE, Looker
from kvferry_connectors.vllm.metadata import LoadJob
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.requesting import requested
from kvferry_connectors.vllm.taking import take_hint
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

log = logging.getLogger("kvferry.vllm")


class Pulls:
    """All pulls of one engine."""

    def __init__(
        self,
        options: Options,
        outbox: Outbox,
        looker: Looker,
        *,
        block_size: int,
        incarnation: str,
    ) -> None:
        self._options = options
        self._outbox = outbox
        self._looker = looker
        self._handovers = Handovers(options, looker, block_size)
        self._block_size = block_size
        self._stride = sample_stride(block_size)
        self._prefix = incarnation
        self._counter = itertools.count(1)
        self._loads = Loads()

    # --- engine thread ----------------------------------------------------------------------

    def begin(self, tracked: Tracked, joined: Joined, mode: str) -> None:
        """A request arrived: start to look for its prefix."""
        tracked.miss = self._refusal(tracked, mode)
        if tracked.miss:
            return
        hint, miss = self._read_hint(tracked, joined, mode)
        if hint is not None and not tracked.params.follow and self._looker.too_dear(hint):
            hint = None
        if mode == OBSERVE:
            self._observe(tracked, joined, hint, miss)
            return
        if hint is None and not self._looker.has_plans():
            tracked.miss = miss or "no_coordinator"
            return
        spared = self._looker.spared(tracked, 0) if hint is None else ""
        if spared:
            tracked.miss = miss or spared
            self._looker.spare(tracked)
            return
        if not self._outbox.reserve():
            tracked.miss = "outbox_full"
            return
        now = time.monotonic()
        transfer = f"{self._prefix}.{next(self._counter)}"
        pull = Pull(transfer, now + self._options.pin_timeout_ms / 1000, now)
        pull.slots.append(None)
        pull.joined, pull.miss = joined, miss
        tracked.pull = pull
        if hint is not None and tracked.params.follow:
            pull.answer_by = now + self._options.handover_timeout_ms / 1000
            self._looker.follow(tracked, pull, hint)
        elif hint is not None:
            self._looker.use_hint(tracked, pull, hint)
        else:
            pull.answer_by += self._options.plan_deadline_ms / 1000
            self._looker.ask_plan(tracked, pull)

    def answer(self, tracked: Tracked, local_tokens: int) -> int | None:
        """Tokens to pull beyond the local ones; None while the answer is not known yet."""
        pull = tracked.pull
        if pull is None or pull.cancelled or pull.state is PullState.ENDED:
            return 0  # A grant may still arrive after we gave up; it changes nothing.
        if pull.state is PullState.LOOKING and pull.basis == HANDOVER:
            miss = self.too_little(tracked, tracked.prompt_blocks, local_tokens)
            step, lost = (
                (Step.LOST, miss) if miss else self._handovers.advance(tracked, local_tokens)
            )
            if step is Step.LOST:
                self.drop(tracked, lost)
                return 0
            if step is Step.WAIT:
                return None
        elif pull.state is PullState.LOOKING:
            spared = "" if pull.basis else self._looker.spared(tracked, local_tokens)
            if spared:
                self.drop(tracked, pull.miss or spared)
                self._looker.spare(tracked)
                return 0
            if time.monotonic() < pull.answer_by:
                return None
            self.drop(tracked, pull.miss or "plan_late")
            return 0
        too_little = self.too_little(tracked, pull.granted, local_tokens)
        if too_little:
            self.drop(tracked, pull.miss or too_little)
            return 0
        first = tracked.hashes[local_tokens // self._block_size]
        if self._loads.others(tracked, first):
            return None  # Somebody is loading this very block: wait, then hit it locally.
        if self._loads.in_vain(pull, first):
            self.drop(tracked, "transfer_failed")
            return 0
        if self._looker.remainders.too_dear(tracked, pull, local_tokens):
            self.drop(tracked, "too_dear")
            return 0
        blocks = min(pull.granted, tracked.prompt_blocks)
        extra: int = blocks * self._block_size - local_tokens
        return extra

    def commit(self, tracked: Tracked, local_blocks: int, targets: list[int]) -> LoadJob:
        """The scheduler allocated ``targets`` for blocks ``local_blocks`` and on: move them."""
        pull = tracked.pull
        assert pull is not None
        pull.state = PullState.LOADING
        self._looker.leave(pull)
        tracked.start_block = local_blocks
        end = local_blocks + len(targets)
        self._loads.begin(tracked, pull)
        return LoadJob(
            transfer=pull.transfer,
            request=tracked.id,
            address=pull.address,
            incarnation=pull.incarnation,
            hashes=tuple(tracked.hashes[local_blocks:end]),
            start=local_blocks,
            target_blocks=tuple(targets),
            deadline_ms=self._options.transfer_timeout_ms,
            follow=tracked.params.follow if pull.basis == HANDOVER else "",
        )

    def announce(self, tracked: Tracked, *, ended: bool = False) -> None:
        """Write the ``requested`` event, once, as soon as all it says is known.

        Of a request that only observes that can be after its admission, on another thread; at
        the request's end, ``ended``, it is written as it is.
        """
        pull = tracked.pull
        if pull is not None and pull.observing and not (pull.known or ended):
            return
        try:
            tracked.unannounced.pop()  # Atomic: two threads may come here at the same moment.
        except IndexError:
            return
        if pull is not None:
            self._looker.predict(tracked, pull)
        event = requested(tracked, self._miss, self._stride)
        tracked.miss = event.miss
        self._outbox.facts(event, tracked.id)

    def drop(self, tracked: Tracked, miss: str) -> None:
        """The pull will not be used: free the source's pin and our reserved slot."""
        pull = tracked.pull
        if pull is None or pull.cancelled or pull.state in (PullState.ENDED, PullState.LOADING):
            return
        pull.cancelled = True
        pull.state = PullState.ENDED
        tracked.miss = miss
        self._looker.unreserve(pull)
        self._looker.leave(pull)
        self._looker.abort(pull, miss)

    def end(self, tracked: Tracked, outcome: Transferred | TransferFailed) -> None:
        """The transfer has its outcome: siblings that waited may go on."""
        pull = tracked.pull
        assert pull is not None
        pull.state = PullState.ENDED
        self._loads.end(tracked, pull, outcome)

    def by_transfer(self, transfer: str) -> Tracked | None:
        """The request that owns an open transfer."""
        return self._loads.by_transfer(transfer)

    def open_count(self) -> int:
        """Transfers that have no outcome yet."""
        return len(self._loads)

    def renew_waiting(self, waiting: list[Tracked], now: float) -> None:
        """Keep the pins of requests that wait for blocks, each third of their deadline."""
        for tracked in waiting:
            pull = tracked.pull
            if (
                pull is not None
                and pull.state is PullState.READY
                and pull.pinned_at
                and now - pull.pinned_at > self._options.pin_ms / 3000
            ):
                pull.pinned_at = now
                self._looker.renew(pull)

    # --- inner ------------------------------------------------------------------------------

    def _observe(self, tracked: Tracked, joined: Joined, hint: Hint | None, miss: str) -> None:
        """Find out what would have been pulled; nobody waits for it and nothing is pinned."""
        now = time.monotonic()
        pull = Pull("", now, now)
        pull.state, pull.observing, pull.joined = PullState.ENDED, True, joined
        tracked.pull = pull
        if hint is not None and take_hint(tracked, pull, hint):
            tracked.miss, pull.known = OBSERVE, True
        elif self._looker.has_plans():
            # So it stays where the request ends before its plan: nothing waited for that.
            tracked.miss, pull.miss = OBSERVE, miss
            self._looker.observe_plan(tracked, pull, lambda: self._observed(tracked, pull))
        else:
            tracked.miss, pull.known = miss or "no_coordinator", True

    def _observed(self, tracked: Tracked, pull: Pull) -> None:
        # On the agent's thread. The engine thread sets ``admitted`` and then reads ``known``,
        # so that one of the two sees both.
        tracked.miss = pull.miss
        pull.known = True
        if tracked.admitted:
            self.announce(tracked)

    def _miss(self, tracked: Tracked) -> str:
        pull = tracked.pull
        if pull is not None and pull.granted and tracked.miss == OBSERVE:
            return self.too_little(tracked, pull.granted, tracked.local_tokens) or OBSERVE
        return tracked.miss or "nothing_held"

    def too_little(self, tracked: Tracked, granted: int, local_tokens: int) -> str:
        """Why a pull of ``granted`` blocks is not worth its while; empty when it is."""
        # One prompt token is computed in any case. So who has all but the last block, or all of
        # it (of which the engine then counts all but the last), asks nobody for that block.
        covered = min(granted * self._block_size, tracked.prompt_tokens - 1)
        if covered - local_tokens >= max(self._block_size, self._options.min_pull_tokens):
            return ""
        return "local" if local_tokens else "too_short"

    def _refusal(self, tracked: Tracked, mode: str) -> str:
        if mode == "paused":
            return "paused"
        if tracked.params.reuse == "off":
            return "reuse_off"
        if not tracked.shareable:
            return "unshareable"
        if tracked.prompt_blocks == 0:
            return "too_short"
        return ""

    def _read_hint(self, tracked: Tracked, joined: Joined, mode: str) -> tuple[Hint | None, str]:
        """The hint, if it can be used; else what a miss would be called."""
        if tracked.params.hint is None:
            return None, ""
        try:
            hint = joined.hints.read(tracked.params.hint, int(time.time() * 1000))
        except HintRefused as refused:
            log.info("request %s: hint ignored: %s", tracked.id, refused.reason)
            tracked.hinted = refused.offer
            return None, refused.reason
        tracked.hinted = hint.offer
        if hint.node == joined.node:
            return None, ""  # Our own blocks: the local prefix cache has them or nobody does.
        if hint.tier == OBSERVE and mode != OBSERVE:
            return None, OBSERVE  # Its node only observes and would refuse us.
        return hint, ""
