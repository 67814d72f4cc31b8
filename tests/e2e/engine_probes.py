"""What a test may ask of an engine's process, by name: the scheduler's truth and kvferry's."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

import msgspec
from tests.e2e.watching import AllocationWatch, LeasingWatch, LoadWatch, Waits


def _ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("kvferry")


def _cpu_s(thread: threading.Thread) -> float:
    """By the thread's own clock: ``/proc`` counts in ticks, in which a short run uses none."""
    assert thread.ident is not None, "it runs"
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


class Probes:
    """Each ``probe_x`` answers ``EngineProcess.ask("x")``."""

    llm: Any
    core: Any
    watch: AllocationWatch
    loads: LoadWatch
    leasing: LeasingWatch
    switch: Any = None

    @property
    def side(self) -> Any:
        """kvferry's scheduler side, alone or under MultiConnector; None without kvferry."""
        connector = self.core.scheduler.connector
        for one in getattr(connector, "sub_connectors", [connector]):
            if type(one).__name__ == "KVFerryConnector":
                return one._scheduler
        return None

    def probe_call(self, what: str, *args: Any) -> Any:
        """``module:function`` of the tests, called with this child and ``args``."""
        module, _, name = what.partition(":")
        return getattr(importlib.import_module(module), name)(self, *args)

    def probe_free_blocks(self) -> int:
        return int(self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def probe_total_blocks(self) -> int:
        return len(self.core.scheduler.kv_cache_manager.block_pool.blocks)

    def probe_watch(self) -> bool:
        """Begin to watch allocations; :meth:`probe_waits` tells."""
        self.watch = AllocationWatch(self.core.scheduler, self.side)
        return True

    def probe_waits(self) -> Waits:
        return self.watch.waits

    def probe_switch(self, arm: str) -> str:
        """From now on ``on`` with kvferry, ``off`` without any connector, or an ``empty`` one."""
        if self.switch is None:
            from tests.e2e.switching import Switch

            self.switch = Switch(self.core)
        self.switch.to(arm)
        return arm

    def probe_own_threads(self) -> float:
        """Seconds of CPU that kvferry's threads in this process have used until now."""
        return sum(_cpu_s(one) for one in threading.enumerate() if _ours(one))

    def probe_joined(self) -> bool:
        joined = self.side._joiner.joined
        return joined is not None and self.side.agent.state == "joined"

    def probe_told(self) -> int:
        """Sequence of the facts up to which the leader has told this engine what is offered."""
        return int(self.side.agent.plans.held.position)

    def probe_space(self) -> str:
        joined = self.side._joiner.joined
        return joined.space if joined is not None else ""

    def probe_incarnation(self) -> str:
        return str(self.side._incarnation)

    def probe_agent(self) -> tuple[str, str]:
        return self.side.agent.state, self.side.agent.why

    def probe_mode(self) -> str:
        return str(self.side._steering.mode)

    def probe_plans(self) -> bool:
        return bool(self.side.agent.plans.available())

    def probe_hosting(self) -> bool:
        """The engine knows its ranks, and so whether there is a host tier."""
        return self.side._joiner.joined is not None

    def probe_host(self) -> int:
        """Blocks in the host tier."""
        tier = self.side._hosting.tier
        return len(tier.table) if tier is not None else 0

    def probe_host_copying(self) -> bool:
        """A copy to the host tier is not done yet."""
        from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group

        tier, host = self.side._hosting.tier, get_kv_transfer_group()._worker._host
        return tier is not None and tier._piece is not None and not host.worker._copied

    def probe_damage_host(self, tokens: list[int], block: int) -> bool:
        """Negate every number of a prompt's block in the host tier; False if it is not there."""
        import numpy as np
        from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group

        slot = self._host_slot(tokens, block)
        if slot is None:
            return False
        for span in get_kv_transfer_group()._worker._host.worker._pool.block(slot):
            np.frombuffer(span, dtype=np.uint8)[3::4] ^= 0x80
        return True

    def probe_in_host(self, tokens: list[int]) -> bool:
        """Whether the last whole block of a prompt is in the host tier."""
        return self._host_slot(tokens, len(tokens) // self.side._block_size - 1) is not None

    def _host_slot(self, tokens: list[int], block: int) -> int | None:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import hash_block_tokens

        hashing = get_hash_fn_by_name(self.side._algorithm)
        size, chain_hash = self.side._block_size, None
        for begin in range(0, (block + 1) * size, size):
            chain_hash = hash_block_tokens(hashing, chain_hash, tokens[begin : begin + size], None)
        slot: int | None = self.side._hosting.tier.table.slot(bytes(chain_hash or b""))
        return slot

    def probe_open(self) -> int:
        return int(self.side._pulls.open_count())

    def probe_requests(self) -> int:
        return len(self.core.scheduler.requests)

    def probe_computed(self) -> int:
        """Most tokens that a living request has computed."""
        requests = self.core.scheduler.requests.values()
        return max((int(request.num_computed_tokens) for request in requests), default=0)

    def probe_watch_loads(self) -> bool:
        """Begin to add up held blocks; :meth:`probe_held_block_s` tells and begins anew."""
        self.loads = LoadWatch(self.side._pulls)
        return True

    def probe_held_block_s(self) -> float:
        held, self.loads.block_s = self.loads.block_s, 0.0
        return held

    def probe_handover_start(self, share: float) -> float:
        """Change the option of that name."""
        handovers = self.side._pulls._handovers
        handovers._options = msgspec.structs.replace(handovers._options, handover_start=share)
        return share

    def probe_preempt(self) -> str:
        """Preempt the request that was scheduled last, by vLLM's own means."""
        scheduler = self.core.scheduler
        request = scheduler.running.pop()
        scheduler._preempt_request(request, time.monotonic())
        return str(request.request_id)

    def probe_outbox(self) -> dict[str, Any]:
        box = self.side.outbox
        return {lane: box.counts(lane) for lane in ("facts", "blocks")}

    def probe_waiting(self) -> int:
        """Events and steps that the ledger does not have yet."""
        box = self.side.outbox
        lanes = sum(box.counts(lane).waiting for lane in ("facts", "blocks"))
        return int(lanes + box.untranslated)

    def probe_pins(self) -> int:
        """Pins of other nodes that stand here."""
        return int(self.side._table.pins())

    def probe_reserved(self) -> int:
        """Outcome slots that wait for the end of a transfer."""
        return int(self.side.outbox.reserved)

    def probe_trust_reads(self, trust: bool) -> bool:
        """Use what was read without asking the source again: the control of the second question."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        puller = get_kv_transfer_group()._worker._puller
        assert puller is not None, "pull something first: the puller is made at the first load"
        puller.unsafe_skip_done = trust
        return trust

    def probe_lend_no_more(self, count: int) -> int:
        """Withdraw so many of the first blocks from the export table behind the book's back."""
        table = self.side._table
        table.withdraw(list(table._offers._block_of)[:count])
        return count

    def probe_drop_lease(self, lease: str) -> int:
        """Give the blocks of a lease back behind the book's back; how many these were."""
        leasing = self.side._exports.leasing
        name, held = leasing._leases.pop(lease.rpartition("L")[0])
        assert name == lease
        leasing._pool.free_blocks(reversed(held))
        return len(held)

    def probe_hold_unsaid(self, lease: str, count: int) -> None:
        """Take references to so many blocks as a lease does, and record nothing of it."""
        leasing = self.side._exports.leasing
        held = leasing._pool.get_new_blocks(count)
        leasing._leases[lease.rpartition("L")[0]] = lease, held

    def probe_lose_host(self, offer: str, place: int) -> int:
        """Take a run's block of this place, and what comes after it, out of the host tier behind
        the book's back; how many blocks are left of the run."""
        table = self.side._hosting.tier.table
        table.discard([table._runs[offer].hashes[place]])
        return place

    def probe_leases(self) -> int:
        return len(self.side._exports.leasing)

    def probe_leasing(self, on: bool) -> bool:
        """Take leases, or let those that stand drain and take none."""
        self.side._exports.leasing.on = on
        return on

    def probe_watch_leasing(self) -> bool:
        """Begin to measure what leases cost; :meth:`probe_leasing_s` tells."""
        self.leasing = LeasingWatch(self.side._exports.leasing)
        return True

    def probe_leasing_s(self) -> float:
        """Seconds of CPU that the engine's thread has spent on leases until now."""
        return self.leasing.spent_s

    def probe_leased(self) -> tuple[dict[str, int], dict[str, int]]:
        """Leases that began by what they were for, and that ended by why."""
        leasing = self.side._exports.leasing
        return dict(leasing.begun), dict(leasing.ended)

    def probe_reset(self, connector: bool = True) -> bool:
        """Reset the prefix cache; with ``connector`` the connector is told as well."""
        return bool(self.core.scheduler.reset_prefix_cache(reset_connector=connector))

    def probe_sources(self) -> dict[str, float]:
        """vLLM's own prompt-token counters by source."""
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:prompt_tokens"):
                source = metric.labels.get("source", "") if metric.labels else ""
                found[f"{metric.name}/{source}"] = float(metric.value)
        return found
