"""Defects that the simulator found in shipped code, put back: they must be found again."""

from __future__ import annotations

from typing import Any

from tests.sim.bugs.bug import Bug, Patch
from tests.sim.bugs.ledger import FULL

from kvferry.core.retention import Retention
from kvferry.core.retention_actions import SUPERSEDED
from kvferry.core.retention_leases import no_pins
from kvferry.daemon.decisions import Decider
from kvferry.daemon.liveness import Liveness
from kvferry.node.agent.lanes import LaneWriter
from kvferry.ports.log import StreamBounds
from kvferry_connectors.vllm.book import Book

SHORT = {
    "stream_bytes": "30000",
    "busy_s": "6.0",
    "coordinators": "2",
    "ledger_loses": "0.05",
    "clients": "5",
    "think_s": "0.02",
    "faults_per_s": "3.0",
}
"""The stream soon loses its beginning."""
DAMAGED = {
    **SHORT,
    "checkpoint_s": "1000.0",
    "fault_kinds": '["kill_coordinator", "kill_coordinator", "freeze_coordinator"]',
}
"""Moreover no checkpoint stands in for it."""
ASLEEP = {
    **SHORT,
    "stream_bytes": "5000",
    "ledger_loses": "0.0",
    "coordinators": "3",
    "clients": "5",
    "faults_per_s": "2.0",
    "batch_events": "1",
    "fault_kinds": '["freeze_coordinator"]',
}
"""Moreover a replica now and then misses what it loses."""
NARROW = {**ASLEEP, "nodes": "4", "blocks": "96"}
"""What a node says when it begins anew nearly fills the stream."""
TWINS = {
    "blocks": "96",
    "lease_budget": "0.9",
    "block_s": "0.03",
    "clients": "5",
    "nodes": "2",
    "think_s": "0.02",
    "latency_s": "0.0003",
    "overlap_share": "0.0",
    "read_hangs": "0.3",
    "faults_per_s": "0.0",
}
"""Requests compute the same side by side, are leased, and read slowly."""


def _term_given_twice() -> tuple[Patch, ...]:
    """Terms were counted from what the state knew, also where the ledger had lost its beginning."""

    async def elect(self: Any, space: str, last: int) -> None:
        log = self._log
        self._log = _Beginning(log)
        try:
            await shipped(self, space, last)
        finally:
            self._log = log

    shipped = Decider._elect
    return (Patch(Decider, "_elect", elect),)


class _Beginning:
    """A log that always says that it has its first message."""

    def __init__(self, log: Any) -> None:
        self._log = log

    async def bounds(self, stream: str) -> StreamBounds:
        return StreamBounds(1, (await self._log.bounds(stream)).last)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _beginning_in_parts() -> tuple[Patch, ...]:
    """A record began with one message and told what is held in another, and when that came the
    stream had dropped the first."""

    def seal(self: Any, entries: Any, *, handed: bool = True) -> Any:
        alone = [shipped(self, [entry], handed=handed) for entry in entries]
        return [entry for poison in alone for entry in poison]

    shipped = LaneWriter.seal
    return (Patch(LaneWriter, "seal", seal),)


def _standby_never_asks() -> tuple[Patch, ...]:
    """A replica that missed messages waited for the leader, which missed nothing, to ask nodes."""

    async def perform(self: Any, effect: Any) -> None:
        if self._standing.leading:
            await shipped(self, effect)

    shipped = Liveness.perform
    return (Patch(Liveness, "perform", perform),)


def _offers_forgotten() -> tuple[Patch, ...]:
    """After an outbox overflowed widely, the ledger was told that nothing is offered."""
    return (Patch(Book, "inventory", lambda self: []),)


def _superseded_while_read() -> tuple[Patch, ...]:
    """A longer lease was taken to keep all of a shorter one, which may have blocks of its own."""

    def end_unread(self: Any, over: Any, reason: str, memory: Any, pinned: Any) -> Any:
        return shipped(self, over, reason, memory, no_pins if reason == SUPERSEDED else pinned)

    shipped = Retention._end_unread
    return (Patch(Retention, "_end_unread", end_unread),)


FOUND_BUGS = (
    Bug("term-given-twice", "leadership", _term_given_twice, "ledger", DAMAGED),
    Bug("beginning-in-parts", "ledger", _beginning_in_parts, "ledger", NARROW),
    Bug("standby-never-asks", "ledger", _standby_never_asks, "ledger", ASLEEP),
    Bug("offers-forgotten", "ledger", _offers_forgotten, "ledger", FULL),
    Bug("superseded-while-read", "leases", _superseded_while_read, knobs=TWINS, seeds=24),
)
