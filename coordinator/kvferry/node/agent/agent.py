"""The agent: one thread beside the engine that talks to the ledger and the coordinator."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from kvferry.core.retention_settings import RetentionSettings
from kvferry.errors import ConfigError
from kvferry.node.agent.connect import Connect, connect_jetstream
from kvferry.node.agent.heartbeat import Gauges
from kvferry.node.agent.holdings import Truth
from kvferry.node.agent.lanes_facts import Offers
from kvferry.node.agent.life import AgentLife
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.agent.status import STOPPED, AgentStatus
from kvferry.node.agent.tasks import end_tasks
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.client import PlanClient

__all__ = ["Identity", "NodeAgent", "NodeSettings"]

logger = logging.getLogger("kvferry.node")

JOIN_SLACK_S = 2.0
"""How much longer than asked for ``stop`` may wait for the thread to end."""


class NodeAgent:
    """A node's life in the ledger. The engine never waits for it.

    Args:
        settings: where the ledger is.
        outbox: what engine threads leave for it; the agent empties it.
        inventory: the engine's own list of what it offers, asked for on the agent's thread and
            only where the outbox overflowed so far that the agent lost sight of it.
        truth: what the engine really has and which pins stand, for who audits; asked for on the
            agent's thread.
        on_mode: called on the agent's thread with each new mode.
        on_retention: called on the agent's thread with what an operator set of how the node keeps,
            whenever that changes.
        connect: one attempt to connect; JetStream at ``settings.nats_url`` by default.

    Attributes:
        plans: asks the coordinator for plans.
    """

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        *,
        inventory: Offers | None = None,
        truth: Truth | None = None,
        on_mode: Callable[[str], None] | None = None,
        on_retention: Callable[[RetentionSettings], None] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.plans = PlanClient(settings)
        self._settings = settings
        self._outbox = outbox
        self._status = AgentStatus(settings.node, on_mode, on_retention)
        self._gauges = Gauges()
        self._life = AgentLife(
            settings,
            outbox,
            self.plans,
            self._status,
            self._gauges,
            inventory=inventory,
            truth=truth,
            connect=connect or connect_jetstream,
        )
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._space = ""
        self._early: Identity | None = None

    @property
    def mode(self) -> str:
        """``on``, ``paused`` or ``observe``."""
        return self._status.mode

    @property
    def state(self) -> str:
        """``starting``, ``alone`` (no ledger), ``joined``, ``duplicate`` or ``stopped``."""
        return self._status.state

    @property
    def why(self) -> str:
        """What :attr:`state` comes from, in plain words."""
        return self._status.why

    def start(self) -> None:
        """Start the thread. Returns at once, whatever the ledger does."""
        with self._gate:
            if self._thread is not None or self._status.state == STOPPED:
                raise RuntimeError("an agent starts once; make a new one")
            loop = asyncio.new_event_loop()
            self._loop = loop
            self._status.why = "connecting"
            if self._early is not None:
                loop.call_soon_threadsafe(self._life.join, self._early)
            self.plans.open(loop)
            self._thread = threading.Thread(
                target=self._main, args=(loop,), name="kvferry-agent", daemon=True
            )
            self._thread.start()

    def join(self, identity: Identity) -> None:
        """Say who this node is, once that is known; ``node_joined`` goes out before all else.

        A later call with another incarnation begins a new record after the facts left so far;
        with the same incarnation it corrects what the node says of itself.

        Raises:
            ConfigError: a node cannot move to another space.
        """
        with self._gate:
            if self._space and identity.space != self._space:
                raise ConfigError(
                    f"node {self._settings.node} is in space {self._space} and cannot join "
                    f"{identity.space}; start another process for it"
                )
            self._space = identity.space
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._life.join, identity)
            elif self._thread is None:
                self._early = identity

    def gauges(self, name: str, value: float) -> None:
        """Show ``value`` as ``name`` in the next heartbeats. Any thread."""
        self._gauges.set(name, value)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Publish what waits and ``node_closed``, and end the thread, within ``timeout_s``."""
        with self._gate:
            thread = self._thread
            if self._loop is not None:
                by_s = time.monotonic() + timeout_s
                self._loop.call_soon_threadsafe(self._life.stop, by_s)
            elif thread is None:
                self._ended()
        if thread is None:
            return
        thread.join(timeout_s + JOIN_SLACK_S)
        if thread.is_alive():
            logger.error(
                "the agent of node %s did not end within %.1f s; its thread is left behind",
                self._settings.node,
                timeout_s + JOIN_SLACK_S,
            )

    # --- the agent's thread ------------------------------------------------------------------

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._life.run())
        except Exception:
            logger.exception("the agent of node %s died; the engine serves without it", self._name)
        finally:
            with self._gate:
                self._loop = None
            try:
                loop.run_until_complete(_clean_up())
            finally:
                loop.close()
                self._ended()

    @property
    def _name(self) -> str:
        return self._settings.node

    def _ended(self) -> None:
        lost = self._outbox.counts("facts").waiting
        if lost:
            logger.warning("%d facts of node %s were not stored", lost, self._name)
        self._outbox.discard("the agent has stopped")
        self._status.stopped()


async def _clean_up() -> None:
    """End what a cut-off connection left running."""
    await end_tasks([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
    await asyncio.get_running_loop().shutdown_asyncgens()
