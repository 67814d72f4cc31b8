"""Carries out what retention decides, on vLLM's block pool.

A lease is a reference count taken with ``touch``. It ends in the scheduler hooks that come before
somebody would have to wait, and never while a peer reads its blocks.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvferry.core.leases import HOST
from kvferry.core.messages import HeldLease
from kvferry.core.retention import Retention
from kvferry.core.retention_actions import END, LEASE, RENEW, TO_HOST, Action
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.core.retention_turnover import Turnover
from kvferry.core.retention_value import Chain, Memory
from kvferry.node.export.host_copies import ToHost
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.advice import AdviceView
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.items import Leased, LeaseEnded, LeaseRenewed
from kvferry_connectors.vllm.limits import limits
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Tracked

SWEEP_S = 0.1
"""Leases, and what the cache is about to reuse, are looked at so often; under pressure at once."""
SWEEP_SHARE = 1 / 16
"""And again once this share of the pool was handed out, however short that took."""

ROOM_BLOCKS = 32
"""Freed at once where a running request found no block: it and its like soon need more."""

LEASE_MARK = "L"
"""Between a chain's key and the number of its lease; together they are the ledger's name for it."""

Stands = Callable[[str, Sequence[int], Sequence[bytes]], bool]
"""Whether an offer stands as a whole, and each of these blocks still holds what it offers."""


class OfferedChain(Chain, kw_only=True, gc=False):
    """A chain of this engine, under the id of its offer."""

    hashes: list[bytes]
    """The engine's own list, of which the chain has the first ``len(blocks)``."""
    named: str
    """Its session as the ledger knows it: ``session`` has the tenant's salt in it."""
    tenant: str
    """The tag of that salt; empty without one."""


class Leasing:
    """The leases of one engine. All methods run on the engine thread.

    Attributes:
        on: leases are taken; those that stand drain once they are not.
        begun: leases that began, by what they were for.
        ended: leases that ended, by reason.
        retention: what decides.
        advice: what to expect of sessions.
        host: where chains go that the cache is about to lose, if there is a host tier.
    """

    def __init__(
        self,
        pool: Any,
        table: ExportTable,
        outbox: Outbox,
        options: Options,
        *,
        offers: Mapping[bytes, str],
        stands: Stands,
        block_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``offers`` maps the tail hash of each chain that is offered whole to its offer."""
        self.on = True
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.retention = Retention()
        self.host: HostTier | None = None
        self.advice = AdviceView()
        self._pool = pool
        self._table = table
        self._pinned = table.pinned_blocks
        self._outbox = outbox
        self._offers = offers
        self._stands = stands
        self._block_tokens = block_tokens
        self._clock = clock
        self._total = len(pool.blocks)
        self._options = options
        self.keep_by(AS_STARTED)
        self._turnover = Turnover()
        self._leases: dict[str, tuple[str, Sequence[Any]]] = {}
        """Chain to the ledger's name of its lease and the blocks that we hold."""
        self._counter = itertools.count(1)
        self._sweep_at_s = self._sweep_at_total = 0.0

    def __len__(self) -> int:
        """How many leases stand."""
        return len(self._leases)

    def standing(self) -> list[HeldLease]:
        """Each lease that stands. Any thread."""
        return [
            HeldLease(lease=name, blocks=len(held)) for name, held in list(self._leases.values())
        ]

    def blocks_of(self, lease: str) -> Sequence[Any]:
        """The pool's blocks that a lease holds; none if it does not stand. Any thread."""
        name, held = self._leases.get(lease.rpartition(LEASE_MARK)[0], ("", ()))
        return held if name == lease else ()

    def keep_by(self, settings: RetentionSettings) -> None:
        """Keep by what an operator set; leases over a lower budget end with the next sweep."""
        self._limits = limits(self._options, settings, self._total)
        self.retention.rule(self._limits.rules)

    def offered(
        self,
        offer: str,
        tracked: Tracked,
        block_ids: Sequence[int],
        covers: Sequence[str],
        *,
        awaited: bool,
    ) -> None:
        """A request ended and left a chain in ``block_ids``, which it still holds.

        Args:
            covers: offers that the chain contains whole.
            awaited: another engine is about to read it.
        """
        now_s, asked_ms = self._clock(), tracked.params.retain_ms
        if tracked.params.end and not awaited:
            return  # Nobody comes back for it.
        chain = OfferedChain(
            key=offer,
            blocks=tuple(block_ids),
            bytes=len(block_ids),
            saved_ms=self.advice.saved_ms(len(block_ids) * self._block_tokens),
            session=tracked.scope,
            turns=max(1, tracked.params.turn),
            ended_s=now_s,
            retain_until_s=now_s + asked_ms / 1000 if asked_ms and not awaited else 0.0,
            awaited=awaited,
            covers=tuple(covers),
            # Who has answered got the prompt from the node that computed it.
            kept_elsewhere=not awaited and self._kept_at(tracked.source, tracked.session),
            hashes=tracked.hashes,
            named=tracked.session,
            tenant=tracked.tenant,
        )
        self._perform(self.retention.offered(now_s, chain, self._memory(), self._pinned))

    def session_ended(self, scope: str) -> None:
        """A client said that its session is over; ``scope`` is its name within its tenant."""
        self._perform(self.retention.session_ended(scope, self._memory(), self._pinned))

    def each_step(self, needed: int, tokens: int, filled: int = 0) -> None:
        """Once a step: keep account of the pool, end and renew leases, save what is in danger.

        Args:
            needed: blocks that requests which hold some already are about to take.
            tokens: tokens that this step computes.
            filled: blocks that loads begin to fill.
        """
        self._turnover.took(tokens / self._block_tokens + filled)
        for tail, reader in self._table.take_reads():
            self._read(self._offers.get(tail, ""), reader)
        if not self.on:
            self.end_all("paused")
            return
        now_s = self._clock()
        if now_s >= self._sweep_at_s or self._turnover.total >= self._sweep_at_total:
            self._sweep_at_s = now_s + SWEEP_S
            self._sweep_at_total = self._turnover.total + self._total * SWEEP_SHARE
            self.retention.gaps = self.advice.gaps
            self._perform(self.retention.sweep(now_s, self._memory(needed), self._pinned))
            over = self._limits.exceeded(self.retention, self.host)
            if over is not None:
                self._perform(self.retention.fit(now_s, self._memory(needed), over, self._pinned))
        self.until_free(lambda: needed)

    def until_free(self, needed: Callable[[], int]) -> None:
        """End leases until ``needed()`` blocks and the watermark are free, or none can end."""
        while self._leases and self.make_room(
            needed() + self._limits.watermark_blocks - self._pool.get_num_free_blocks()
        ):
            pass

    def make_room(self, blocks: int) -> bool:
        """End leases, least value first and never while pinned, until ``blocks`` are freed."""
        if blocks <= 0 or not self._leases:
            return False
        ended = self.retention.room(self._clock(), blocks, self._memory(), self._pinned)
        self._perform(ended)
        return bool(ended)

    def crowded(self, blocks: int) -> bool:
        """Whether leases are in the way of ``blocks`` that somebody is about to take."""
        least = blocks + self._limits.watermark_blocks
        return bool(self._leases and least > self._pool.get_num_free_blocks())

    def end_all(self, reason: str) -> None:
        """End every lease that is not pinned."""
        if self._leases:
            self._perform(self.retention.end_all(reason, self._memory(), self._pinned))

    def moved(self, key: str, whole: bool) -> None:
        """A chain's copy to the host tier has ended."""
        self._perform(self.retention.moved(self._clock(), key, whole=whole))

    def clear(self, reason: str) -> None:
        """End every lease, whoever reads it, and forget every chain."""
        self.retention.clear()
        for key in list(self._leases):
            self._end(key, reason)

    # --- inner ------------------------------------------------------------------------------

    def _memory(self, needed: int = 0) -> Memory:
        admitted = self.on and self._outbox.admit()
        return Memory(
            free=self._pool.get_num_free_blocks(),
            budget=self._limits.lease_blocks if admitted else 0,
            watermark=self._limits.watermark_blocks,
            needed=needed,
            handed_out=self._turnover.total,
            per_s=self._turnover.per_s(self._clock()),
            host_budget=self._limits.host_blocks(self.host) if admitted else 0,
        )

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.act == TO_HOST:
                self._copy(action.chain)
            elif action.act == END and action.tier == HOST:
                assert self.host is not None
                self.host.end(action.chain, action.reason)
            elif action.act == END:
                self._end(action.chain, action.reason)
            elif action.act == RENEW:
                if action.chain in self._leases:
                    lease, _ = self._leases[action.chain]
                    self._outbox.hand_over(LeaseRenewed(lease, action.ttl_ms, action.reason))
            elif action.act == LEASE:
                self._begin(action)

    def _read(self, key: str, reader: str) -> None:
        chain = self.retention.find(key)
        named = chain.named if isinstance(chain, OfferedChain) else ""
        self.retention.read(key, kept_there=self._kept_at(reader, named))

    def _kept_at(self, other: str, session: str) -> bool:
        """Whether another node that has a session's chain too is the one to keep it."""
        own = self.host.table.slots if self.host is not None else 0
        return bool(other) and self.advice.kept_there(session, other, own)

    def _begin(self, action: Action) -> None:
        chain = self.retention.find(action.chain)
        if not isinstance(chain, OfferedChain):
            return  # A later action of the same round gave it up again.
        whole = self._offers.get(chain.hashes[len(chain.blocks) - 1]) == chain.key
        if not whole or not self._stands(chain.key, chain.blocks, chain.hashes):
            self.retention.lost(chain.key, self._memory())  # Or a longer offer has its blocks.
            return
        lease = f"{chain.key}{LEASE_MARK}{next(self._counter)}"
        held = [self._pool.blocks[i] for i in chain.blocks]
        self._pool.touch(held)
        self._table.prefer(chain.hashes[: len(chain.blocks)], chain.blocks)
        self._leases[chain.key] = lease, held
        self.begun[action.reason] += 1
        self._outbox.hand_over(Leased(lease, chain.key, action.ttl_ms, action.reason))

    def _copy(self, key: str) -> None:
        chain = self.retention.find(key)
        assert isinstance(chain, OfferedChain)
        assert self.host is not None
        hashes = chain.hashes[: len(chain.blocks)]
        copy = ToHost(key, hashes, chain.blocks, session=chain.named, tenant=chain.tenant)
        self.host.copy(copy)

    def _end(self, key: str, reason: str) -> None:
        if key not in self._leases:
            return  # Its blocks were gone when it was to begin.
        lease, held = self._leases.pop(key)
        # The tail first: a shorter prefix is worth more than a hole at its start.
        self._pool.free_blocks(reversed(held))
        self.ended[reason] += 1
        self._outbox.hand_over(LeaseEnded(lease, reason))
