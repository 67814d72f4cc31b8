"""Records turns in the ledger, as a node of the space ``router``."""

from __future__ import annotations

import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING

from kvferry.core.events import TurnEnded
from kvferry.ids import ROUTER_SPACE

if TYPE_CHECKING:
    from kvferry.node.agent.agent import NodeAgent
    from kvferry.node.agent.settings import NodeSettings
    from kvferry.node.outbox.outbox import Outbox

_STOP_S = 5.0


class RouterLedger:
    """Hands turns to an agent thread; never waits for the ledger."""

    def __init__(self, agent: NodeAgent, outbox: Outbox) -> None:
        self._agent = agent
        self._outbox = outbox

    @classmethod
    def open(cls, settings: NodeSettings) -> RouterLedger:
        """Starts the agent. Returns at once, whatever the ledger does."""
        # Imported here, so that a router without a ledger runs without NATS.
        from kvferry.node.agent.agent import NodeAgent
        from kvferry.node.agent.settings import Identity
        from kvferry.node.outbox.outbox import Outbox

        outbox = Outbox()
        agent = NodeAgent(settings, outbox)
        agent.start()
        agent.join(
            Identity(
                space=ROUTER_SPACE,
                incarnation=secrets.token_hex(8),
                version=version("kvferry"),
                role="router",
            )
        )
        return cls(agent, outbox)

    def turn_ended(self, event: TurnEnded) -> None:
        self._outbox.facts(event, event.request)

    def close(self) -> None:
        """Says good-bye and flushes. Blocks for at most 5 s."""
        self._agent.stop(_STOP_S)
