"""The scheduler's side: one per engine core. Hooks only look things up and leave messages."""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.keys import load_key
from kvferry_connectors.vllm import compat
from kvferry_connectors.vllm.admissions import Admissions
from kvferry_connectors.vllm.agents import node_agent
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.exports import Exports
from kvferry_connectors.vllm.hosting import Hosting
from kvferry_connectors.vllm.items import Arrived, Finished, ending
from kvferry_connectors.vllm.joined import Joiner
from kvferry_connectors.vllm.leasing import ROOM_BLOCKS
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.metadata import FerryMetadata, FerryWorkerMeta, RankHello
from kvferry_connectors.vllm.options import Options, node_name
from kvferry_connectors.vllm.outcomes import links_probed, outcome
from kvferry_connectors.vllm.publishing import Publishing, written_blocks
from kvferry_connectors.vllm.pulls import Pulls
from kvferry_connectors.vllm.replies import Replies
from kvferry_connectors.vllm.space import shareable
from kvferry_connectors.vllm.steering import Steering
from kvferry_connectors.vllm.tenants import Tenants
from kvferry_connectors.vllm.tracked import KEY, PullState, Tracked
from kvferry_connectors.vllm.truth import EngineTruth

log = logging.getLogger("kvferry.vllm")


class SchedulerSide:
    """Decides and records; workers move the bytes."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, options: Options, *, multi: bool):
        self._config = vllm_config
        self._options = options
        self._block_size = int(vllm_config.cache_config.block_size)
        self._algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
        self._ranks = int(vllm_config.parallel_config.world_size)
        self._incarnation = secrets.token_hex(8)
        self._pulls_allowed = not multi or options.parent_load_failure_policy == "recompute"
        self._problem = compat.one_full_attention_group(kv_cache_config)
        delay = int(getattr(vllm_config, "max_concurrent_batches", 1))
        self._book = Book(self._block_size, delay=delay)
        self.outbox = Outbox(translate=self._book.translate)
        name = node_name(options, str(vllm_config.kv_transfer_config.engine_id or ""))
        self._table = ExportTable(self._incarnation, on_pin_ended=self.outbox.facts)
        self._steering = Steering(self._table)
        truth = EngineTruth(self._book, self._table, lambda: self._exports)
        self.agent = node_agent(options, name, self.outbox, self._steering, self._book, truth)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="kvferry-peer")
        looker = Looker(
            options,
            self.outbox,
            self.agent.plans,
            self._pool,
            block_size=self._block_size,
            ranks=self._ranks,
        )
        self._pulls = Pulls(
            options, self.outbox, looker, block_size=self._block_size, incarnation=self._incarnation
        )
        self._hosting = Hosting(options, self.outbox, self._table, self._pulls, looker)
        key = load_key(options.key or None)
        self._tenants = Tenants(key)
        self._joiner = Joiner(
            vllm_config,
            options,
            key,
            name,
            self._incarnation,
            self._table,
            self.agent,
            blocks=kv_cache_config.num_blocks,
            warnings=() if self._pulls_allowed else (compat.EXPORTS_ONLY,),
        )
        self._exports: Exports | None = None
        self._publishing: Publishing | None = None
        self._replies = Replies(name, options, self._joiner)
        self._admissions = Admissions(self._block_size)
        self._requests: dict[str, Tracked] = {}
        self._waiting: dict[str, Tracked] = {}
        self._loads: list[Any] = []
        self._cancels: list[str] = []
        if not self._pulls_allowed:
            log.warning("kvferry: %s", compat.EXPORTS_ONLY)
        if self._problem:
            log.warning("kvferry does nothing on this engine: %s", self._problem)
        else:
            self.agent.start()
            self._joiner.start()

    # --- binding ----------------------------------------------------------------------------

    def bind(self, pool: Any) -> None:
        """The engine's block pool exists."""
        compat.check_block_pool(pool)
        self._exports = Exports(
            pool,
            self._table,
            self.outbox,
            self._options,
            incarnation=self._incarnation,
            caching=bool(self._config.cache_config.enable_prefix_caching),
            block_tokens=self._block_size,
        )
        self._exports.leasing.advice = self.agent.plans.advice
        self._replies.exports = self._exports
        self._publishing = Publishing(self._table.published, self._exports, self._block_size)

    def hello(self, hello: RankHello) -> None:
        """A rank introduced itself."""
        self._joiner.hello(hello)

    # --- hooks ------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """A request arrived."""
        if self._problem:
            return
        ok = shareable(request, self._algorithm)
        tracked = Tracked(request, self._block_size, time.monotonic(), ok)
        tracked.tenant = self._tenants.tag(getattr(request, "cache_salt", None))
        self._requests[tracked.id] = tracked
        self.outbox.hand_over(Arrived(tracked))
        if self._publishing is not None:
            self._publishing.begin(request, tracked)
        joined = self._joiner.joined
        if joined is None:
            tracked.miss = "no_coordinator"
        elif not self._pulls_allowed:
            tracked.miss = "policy_unset"
        elif request.skip_reading_prefix_cache:
            tracked.miss = "unshareable"  # It wants every prompt token computed.
        else:
            self._pulls.begin(tracked, joined, self._steering.mode)
            if tracked.pull is not None:
                self._waiting[tracked.id] = tracked

    def matched(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """Tokens that a pull can add; ``(None, False)`` asks the scheduler to come again."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return 0, False
        if self._exports is not None and self._exports.leasing:
            self._exports.room_for(
                self._admissions.whole(request),
                tracked.hashes[: local_tokens // self._block_size],
                self._admissions.needed(but=tracked.id),
            )
        if tracked.admitted:
            return 0, False
        tracked.local_tokens = min(local_tokens, tracked.prompt_tokens)
        self._hosting.consider(tracked, local_tokens, self._steering.mode)
        extra = self._pulls.answer(tracked, local_tokens)
        return (None, False) if extra is None else (extra, extra > 0)

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """The scheduler gave the request its blocks."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return
        self._admissions.allocated(request, tracked)
        if external_tokens > 0:
            first = tracked.local_tokens // self._block_size
            count = external_tokens // self._block_size
            ids = blocks.get_block_ids()[0][first : first + count]
            job = self._pulls.commit(tracked, first, ids)
            self._loads.append(self._hosting.order(tracked, job))
            self._waiting.pop(tracked.id, None)
            self._pulls.announce(tracked)
        elif not tracked.admitted:
            tracked.admitted = True
            self._waiting.pop(tracked.id, None)
            self._pulls.drop(tracked, "unused")
            self._pulls.announce(tracked)

    def build_meta(self, output: Any) -> FerryMetadata:
        """Once per step: tell the workers what is new, and the outbox what was scheduled."""
        now = time.monotonic()
        if output.num_scheduled_tokens:
            self._admissions.scheduled(output, self._requests)
            self.outbox.hand_over((now, output.num_scheduled_tokens, output.preempted_req_ids))
        if self._exports is not None and self._publishing is not None:
            if self._steering.apply(self._exports):
                self._withdraw("paused")
            self._publishing.scheduled(output, self._requests)
            needed = len(output.num_scheduled_tokens)  # A running request grows by a block.
            if self._exports.leasing:
                needed += self._admissions.needed()
            filled = sum(len(job.target_blocks) for job in self._loads)
            self._exports.each_step(needed, output.total_num_scheduled_tokens, filled)
        if self._waiting:
            self._pulls.renew_waiting(list(self._waiting.values()), now)
        meta = FerryMetadata(copies=self._hosting.each_step(self._joiner.joined, self._exports))
        if self._loads or self._cancels:
            joined = self._joiner.joined
            assert joined is not None
            meta.identity = joined.session
            meta.loads, self._loads = self._loads, []
            meta.cancels, self._cancels = self._cancels, []
        return meta

    def worker_output(self, meta: Any) -> None:
        """What the ranks said in this step."""
        if not isinstance(meta, FerryWorkerMeta):
            return
        for hello in meta.hellos:
            self._joiner.hello(hello)
        self._hosting.copied(meta.copied)
        for result in meta.results:
            tracked = self._pulls.by_transfer(result.transfer)
            if tracked is None:
                continue
            tracked.results.append(result)
            if len(tracked.results) == self._ranks:
                self._settle(tracked)

    def finished(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends, however it ends. Never delays the free (see ARCHITECTURE.md)."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return False, None
        self._waiting.pop(tracked.id, None)
        self._admissions.gone(tracked.id)
        tracked.finished = True
        pull = tracked.pull
        if pull is not None and pull.state is PullState.LOADING:
            self._cancels.append(pull.transfer)
        else:
            self._pulls.drop(tracked, "aborted")
        self._pulls.announce(tracked, ended=True)
        blocks = written_blocks(request, tracked, len(block_ids[0]), self._block_size)
        reply = self._replies.reply(tracked, request, block_ids[0], blocks, self._steering.mode)
        if self._publishing is not None:
            self._publishing.ended(tracked, blocks)
        how, tokens = ending(request.status.name), request.num_output_tokens
        self.outbox.hand_over(Finished(time.monotonic(), tracked, how, tokens, blocks))
        return False, {KEY: reply}

    def block_frees_pending(self) -> bool:
        """The scheduler could not allocate: end leases rather than preempt somebody."""
        return self._exports is not None and self._exports.leasing.make_room(ROOM_BLOCKS)

    def reset_cache(self) -> bool:
        """The engine's cache was reset: nothing that we offered is there any more.

        vLLM asks us after its own attempt, which fails while leases stand; its next one succeeds.
        """
        self._withdraw("cleared")
        return True

    def close(self) -> None:
        """Stop every thread and socket of ours."""
        self._joiner.close()
        self._table.close()  # Every pin that stands ends in the ledger before the agent says bye.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.agent.stop()

    # --- inner ------------------------------------------------------------------------------

    def _settle(self, tracked: Tracked) -> None:
        pull = tracked.pull
        assert pull is not None
        event = outcome(tracked, pull, block_size=self._block_size, verify=self._options.verify)
        self._pulls.end(tracked, event)
        self._hosting.loaded(tracked)
        pull.slots.clear()
        for probed in links_probed(tracked, pull):
            self.outbox.facts(probed, pull.transfer)
        self.outbox.settle(event, pull.transfer)

    def _withdraw(self, reason: str) -> None:
        if self._exports is not None and self._publishing is not None:
            self._publishing.clear()
            self._exports.clear(reason)
