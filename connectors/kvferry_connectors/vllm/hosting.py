"""The host tier in the scheduler side's hooks: loads from it, and its part of each step.

A request whose prefix is in the host tier gets it as a load like one from a peer, of which this
node is the source itself: nobody is asked and nothing is pinned, for the engine thread alone
decides what leaves the tier.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time

from kvferry.node.export.host_copies import LoadCost
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.advice import AdviceView
from kvferry_connectors.vllm.exports import Exports
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.joined import Joined
from kvferry_connectors.vllm.looking import HANDOVER, Looker
from kvferry_connectors.vllm.metadata import CopyOrder, LoadJob, RankCopied
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.pulls import Pulls
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

log = logging.getLogger("kvferry.vllm")

HOST = "host"
"""The basis of a load from this node's own host tier."""
KEPT_OUT = frozenset({"unshareable", "reuse_off", "policy_unset", "paused"})
"""Misses of requests that must not be served from elsewhere than the engine's own cache."""


DEAR_RATIO = 2.0
"""Copies must take so many times longer than computing before the tier is left alone."""


class Hosting:
    """The host tier of one engine, if it has one. All methods run on the engine thread."""

    def __init__(
        self,
        options: Options,
        outbox: Outbox,
        table: ExportTable,
        pulls: Pulls,
        looker: Looker,
    ) -> None:
        self._options = options
        self._outbox = outbox
        self._table = table
        self._pulls = pulls
        self._looker = looker
        self._counter = itertools.count(1)
        self._held: dict[str, tuple[int, ...]] = {}
        """Slots that a load copies from, by transfer."""
        self._joined: Joined | None = None
        self._block_size = 1
        self._advice: AdviceView | None = None
        self._cost = LoadCost()
        self.tier: HostTier | None = None

    # --- a request --------------------------------------------------------------------------

    def consider(self, tracked: Tracked, local_tokens: int, mode: str) -> None:
        """Make the host tier the request's source where that is as good as anything known."""
        tier, pull = self.tier, tracked.pull
        if tier is None or mode != "on" or tracked.admitted or tracked.miss in KEPT_OUT:
            return
        if pull is not None and (
            pull.observing or pull.state is PullState.LOADING or pull.basis == HANDOVER
        ):
            return
        first = local_tokens // self._block_size
        stop = first + tier.table.reach(tracked.hashes, first, tracked.prompt_blocks)
        if pull is not None and pull.basis == HOST:
            pull.granted = stop  # Asked again: the cache or the tier may have changed.
            return
        if self._pulls.too_little(tracked, stop, local_tokens):
            return
        if self._dear(stop - first):
            if pull is None:
                tracked.miss = "too_dear"
            return
        if pull is not None and not self._better(tracked, pull, stop):
            return
        self._take(tracked, stop)

    def order(self, tracked: Tracked, job: LoadJob) -> LoadJob:
        """The load as the ranks carry it out."""
        pull = tracked.pull
        if self.tier is None or pull is None or pull.basis != HOST:
            return job
        slots = self.tier.hold(job.hashes)
        self._held[job.transfer] = slots
        return dataclasses.replace(job, host_slots=slots)

    def loaded(self, tracked: Tracked) -> None:
        """Every rank has reported a load."""
        pull = tracked.pull
        slots = self._held.pop(pull.transfer, None) if pull is not None else None
        if self.tier is None or slots is None:
            return
        damaged = any(result.reason == "digest" for result in tracked.results)
        if all(result.ok for result in tracked.results):
            slowest_ms = max(result.read_ms for result in tracked.results)
            self._cost.noted(len(slots), slowest_ms, time.monotonic())
        start = tracked.start_block
        hashes = tracked.hashes[start : start + len(slots)]
        self.tier.release(slots, hashes if damaged else ())

    # --- each step --------------------------------------------------------------------------

    def each_step(self, joined: Joined | None, exports: Exports | None) -> list[CopyOrder]:
        """What the ranks are to copy to the host."""
        if self._joined is None and joined is not None and exports is not None:
            self._begin(joined, exports)
        order = self.tier.each_step() if self.tier is not None else None
        return [] if order is None else [order]

    def copied(self, reports: list[RankCopied]) -> None:
        """Ranks have copied."""
        for report in reports:
            assert self.tier is not None
            self.tier.copied(report)

    # --- inner ------------------------------------------------------------------------------

    def _begin(self, joined: Joined, exports: Exports) -> None:
        """The ranks are known: make the tier, if they have room for one."""
        self._joined, self._block_size = joined, joined.block_size
        self._advice = exports.leasing.advice
        if not joined.host_slots:
            return
        if not exports.caching:
            log.warning("host_tier_bytes has no effect without vLLM's own prefix caching")
            return
        self.tier = HostTier(
            exports.present_hash,
            self._table,
            self._outbox,
            slots=joined.host_slots,
            ranks=joined.ranks,
            engine_blocks=exports.engine_blocks,
            block_bytes=joined.rank_block_bytes,
            bytes_per_s=self._options.host_copy_mb_per_s * 1e6,
        )
        exports.host_tier(self.tier)
        log.info("kvferry: the host tier holds %d blocks", joined.host_slots)

    def _better(self, tracked: Tracked, pull: Pull, stop: int) -> bool:
        """Whether ``stop`` blocks from here are as many as the pull may bring."""
        if pull.state is PullState.READY and not pull.cancelled:
            return pull.granted <= stop
        if pull.state is PullState.LOOKING and not pull.cancelled:
            return bool(self._looker.spared(tracked, stop * self._block_size))
        return True

    def _dear(self, blocks: int) -> bool:
        """Whether computing so many blocks is thought clearly faster than copying them."""
        advice = self._advice
        if advice is None or not advice.term:
            return False  # Nobody has told what computing takes here.
        copy_ms = self._cost.ms(blocks, time.monotonic())
        return copy_ms > DEAR_RATIO * advice.saved_ms(blocks * self._block_size)

    def _take(self, tracked: Tracked, stop: int) -> None:
        self._pulls.drop(tracked, "unused")
        joined = self._joined
        assert joined is not None
        if not self._outbox.reserve():
            tracked.miss = "outbox_full"
            return
        now = time.monotonic()
        pull = Pull(f"{joined.incarnation}.h{next(self._counter)}", now, now)
        pull.slots.append(None)
        pull.joined, pull.basis, pull.granted = joined, HOST, stop
        pull.source, pull.incarnation = joined.node, joined.incarnation
        pull.state = PullState.READY
        tracked.pull, tracked.miss, tracked.told = pull, "", False
        tracked.position, tracked.waited_ms = 0, 0.0
