"""The agent: one thread beside the engine that talks to the ledger and the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kvferry.core.events import Retained
from kvferry.node.outbox import Outbox
from kvferry.node.plans import PlanClient
from kvferry.node.settings import Identity, NodeSettings
from kvferry.ports.log import BusPort, LogPort


class Ledger(LogPort, BusPort, Protocol):
    """What a connection gives: the log and the bus."""


Connect = Callable[[NodeSettings], Awaitable[Ledger]]


class NodeAgent:
    """A node's life in the ledger. The engine never waits for it."""

    plans: PlanClient
    mode: str
    """``on``, ``paused`` or ``observe``."""
    state: str
    """``starting``, ``alone`` (no ledger), ``joined``, ``duplicate`` or ``stopped``."""
    why: str
    """What ``state`` comes from, in plain words."""

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        *,
        inventory: Callable[[], Iterable[Retained]] | None = None,
        on_mode: Callable[[str], None] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.plans = PlanClient()
        self.mode, self.state, self.why = "on", "starting", ""

    def start(self) -> None:
        """Start the thread. Returns at once, whatever the ledger does."""

    def join(self, identity: Identity) -> None:
        """Say who this node is, once that is known. Any thread."""

    def gauges(self, name: str, value: float) -> None:
        """Show ``value`` as ``name`` in the next heartbeats. Any thread."""

    def stop(self, timeout_s: float = 5.0) -> None:
        """Say good-bye, flush and end the thread, within ``timeout_s``."""
