"""Bugs of pins, reads, offers and the engine's side."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.bugs.bug import Bug, Patch

from kvferry.node.export.desk import PinDesk
from kvferry.node.export.offers import Offers
from kvferry.node.export.pinbook import PinBook
from kvferry.node.export.table import ExportTable
from kvferry.node.peers.hints import HintBook, _Signed, _unpack
from kvferry.node.pull.attempt import Attempt
from kvferry.node.pull.puller import Puller
from kvferry.node.pull.reads import Reads
from kvferry_connectors.vllm import scheduler
from kvferry_connectors.vllm.leasing import Leasing, OfferedChain
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.worker import WorkerSide

TIGHT = {"blocks": "24", "lease_budget": "0.0", "block_s": "0.03", "clients": "5"}
"""Small pools and slow reads: blocks are reused while they are read."""
FROZEN = {
    **TIGHT,
    "block_s": "0.08",
    "fault_kinds": '["freeze"]',
    "faults_per_s": "4.0",
    "think_s": "0.02",
    "pin_ms": "300",
    "transfer_timeout_ms": "20000",
    "planes": '[["direct", true]]',
    "ranks": "1",
    "nodes": "3",
}
"""Moreover engines stop in the middle of it, longer than any deadline."""

ABORTED = {"abort_share": "0.5", "step_s": "0.03", "blocks": "48", "block_s": "0.03"}
"""Many requests end in the middle of their prefill."""

LEASED = {"blocks": "24", "lease_budget": "0.5", "block_s": "0.03", "clients": "5"}
"""Leases are in the way of requests while others read slowly."""


def _no_second_question() -> tuple[Patch, ...]:
    return (Patch(Attempt, "_settle", lambda self: None),)


def _intact_without_looking() -> tuple[Patch, ...]:
    return (Patch(PinDesk, "_intact", lambda self, pin: True),)


def _reuse_unheard() -> tuple[Patch, ...]:
    # Behind the callback stands a comparison of hashes; alone, neither is missed.
    return (
        Patch(Offers, "reused", lambda self, block: False),
        _no_comparison(),
    )


def _no_comparison() -> Patch:
    """The engine's present hash of a block is not asked for: the net beneath the others."""
    return Patch(ExportTable, "check", property(lambda self: None, lambda self, check: None))


def _expired_pin_still_intact() -> tuple[Patch, ...]:
    return (Patch(PinDesk, "_late_done", lambda self, key, frame, now_s: True),)


def _freed_before_the_fence() -> tuple[Patch, ...]:
    return (Patch(Reads, "end", lambda self: None),)


def _tombstones_missing() -> tuple[Patch, ...]:
    return (Patch(PinBook, "ended", lambda self, key: None),)


def _pins_never_expire() -> tuple[Patch, ...]:
    return (Patch(PinBook, "overdue", lambda self, now_s: []),)


def _hint_unauthenticated() -> tuple[Patch, ...]:
    def read(self: HintBook, raw: object, now_ms: int) -> Any:
        return _unpack(msgspec.convert(raw, _Signed))

    return (Patch(HintBook, "read", read),)


def _failed_blocks_unreported() -> tuple[Patch, ...]:
    return (Patch(WorkerSide, "failed_blocks", lambda self: set()),)


def _load_reported_twice() -> tuple[Patch, ...]:
    shipped = WorkerSide.finished

    def finished(self: Any) -> set[str]:
        again = getattr(self, "_again", set())
        self._again = shipped(self)
        return self._again | again

    return (Patch(WorkerSide, "finished", finished),)


def _outcome_twice() -> tuple[Patch, ...]:
    shipped = scheduler.outcome

    def twice(tracked: Any, pull: Any, **given: Any) -> Any:
        event = shipped(tracked, pull, **given)
        pull.joined.twice_into.facts(event, pull.transfer)
        return event

    settle = scheduler.SchedulerSide._settle

    def settled(self: Any, tracked: Any) -> None:
        tracked.pull.joined.twice_into = self.outbox
        settle(self, tracked)

    return (
        Patch(scheduler, "outcome", twice),
        Patch(scheduler.SchedulerSide, "_settle", settled),
    )


def _unwritten_kv_offered() -> tuple[Patch, ...]:
    def every_block(request: Any, tracked: Any, held: int, block_size: int) -> int:
        return min(len(tracked.hashes), held)

    return (Patch(scheduler, "written_blocks", every_block), _no_comparison())


def _pin_on_the_engine_thread() -> tuple[Patch, ...]:
    def use_hint(self: Any, tracked: Any, pull: Any, hint: Any) -> None:
        shipped(self, tracked, pull, hint)
        self._pin(tracked, pull, False)

    shipped = Looker.use_hint
    return (Patch(Looker, "use_hint", use_hint),)


def _result_lost() -> tuple[Patch, ...]:
    def finish(self: Any, entry: Any, result: Any) -> None:
        del self._entries[entry.job.transfer]
        if result.reason != "aborted":
            self._results.append(result)

    return (Patch(Puller, "_finish", finish),)


def _lease_freed_while_pinned() -> tuple[Patch, ...]:
    """Leases end without regard to who reads their blocks."""
    return (Patch(ExportTable, "pinned_blocks", lambda self: set()),)


def _leased_under_an_ended_offer() -> tuple[Patch, ...]:
    """A chain is leased although a longer offer has taken its place in the ledger."""

    def begin(self: Any, action: Any) -> None:
        chain, offers = self.retention.find(action.chain), self._offers
        if isinstance(chain, OfferedChain):
            self._offers = {chain.hashes[len(chain.blocks) - 1]: chain.key}
        try:
            shipped(self, action)
        finally:
            self._offers = offers

    shipped = Leasing._begin
    return (Patch(Leasing, "_begin", begin),)


PEER_BUGS = (
    Bug("no-second-question", "truth", _no_second_question, knobs=TIGHT),
    Bug("intact-without-looking", "truth", _intact_without_looking, knobs=TIGHT),
    Bug("reuse-unheard", "truth", _reuse_unheard, knobs=TIGHT),
    Bug(
        "expired-pin-still-intact",
        "conservation",
        _expired_pin_still_intact,
        knobs=FROZEN,
        seeds=24,
    ),
    Bug("freed-before-the-fence", "quarantine", _freed_before_the_fence),
    Bug("tombstones-missing", "endings", _tombstones_missing),
    Bug("pins-never-expire", "endings", _pins_never_expire),
    Bug("hint-unauthenticated", "secrecy", _hint_unauthenticated),
    Bug("failed-blocks-unreported", "truth", _failed_blocks_unreported),
    Bug("load-reported-twice", "endings", _load_reported_twice),
    Bug("outcome-twice", "endings", _outcome_twice),
    Bug("unwritten-kv-offered", "truth", _unwritten_kv_offered, knobs=ABORTED),
    Bug("pin-on-the-engine-thread", "engine", _pin_on_the_engine_thread),
    Bug("result-lost", "endings", _result_lost),
    Bug("lease-freed-while-pinned", "leases", _lease_freed_while_pinned, knobs=LEASED),
    Bug(
        "leased-under-an-ended-offer",
        "leases",
        _leased_under_an_ended_offer,
        knobs=LEASED,
        seeds=24,
    ),
)
