"""Sends in the ledger: each claimed request begins one and ends it once, whatever happens.

Beside ``KVFerryConnector`` they are facts of that engine's node. Alone, the connector is a node of
its own where it is told a ledger (``nats_url``), and without one nothing is recorded.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kvferry.core.events import SendBegan, SendEnded
from kvferry.ids import ROUTER_SPACE
from kvferry_connectors.tilert.claims import Claim
from kvferry_connectors.tilert.options import Options
from kvferry_connectors.tilert.outcomes import REFUSED, SendOutcome
from kvferry_connectors.vllm import neighbours
from kvferry_connectors.vllm.options import default_node_name

if TYPE_CHECKING:
    from kvferry.node.agent.agent import NodeAgent
    from kvferry.node.outbox.outbox import Outbox

ROLE = "prefill"

log = logging.getLogger("kvferry.tilert")


class Recording:
    """The sends of one engine. Every method may be called on any thread and never waits."""

    def __init__(self, outbox: Outbox, *, agent: NodeAgent | None = None) -> None:
        """``agent`` is the node's own, where it is not another connector's; it is stopped here."""
        self._outbox = outbox
        self._agent = agent
        self._life = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def began(self, claim: Claim) -> None:
        """A request was claimed. Where the ledger is so far behind that nothing new may start,
        this send is left out of it as a whole."""
        if not self._outbox.reserve():
            log.warning("tilert: the send of %s is not recorded: the ledger is behind", claim.id)
            return
        claim.send = f"{self._life}.s{next(self._numbers)}"
        mark = claim.mark
        event = SendBegan(
            send=claim.send,
            request=claim.id,
            rid=claim.rid,
            target=claim.target,
            tokens=int(claim.request.num_prompt_tokens),
            slot=mark.slot if mark is not None else "",
            fence=mark.fence if mark is not None else 0,
            external_id=mark.turn if mark is not None else "",
        )
        self._outbox.facts(event, claim.id)

    def ended(self, claim: Claim, outcome: SendOutcome) -> None:
        """Its outcome is known."""
        if not claim.send:
            return
        event = SendEnded(
            send=claim.send,
            request=claim.id,
            stage=outcome.stage if outcome.state == REFUSED else "",
            reason=outcome.reason,
            detail=outcome.detail,
            bytes=outcome.bytes,
            generation=outcome.generation,
            waited_ms=claim.waited_ms,
            admitted_ms=outcome.admitted_ms,
            total_ms=outcome.total_ms,
            no_origin=claim.no_origin if outcome.state != REFUSED else "",
        )
        self._outbox.settle(event, claim.send)

    def close(self) -> None:
        """Say good-bye where the node is our own."""
        if self._agent is not None:
            self._agent.stop()


def open_recording(options: Options, vllm_config: Any) -> Recording | None:
    """Where this engine's sends are recorded; ``None`` without a ledger.

    Called once every connector of the engine exists.

    Raises:
        ConfigError: the node's name or a credential cannot be used.
    """
    shared = neighbours.outbox_of(vllm_config)
    if shared is not None:
        if options.nats_url:
            log.warning(
                "tilert: nats_url is ignored: KVFerryConnector of this engine has joined the "
                "ledger already, and an engine is one node; leave it out"
            )
        return Recording(shared)
    if not options.nats_url:
        return None
    engine_id = str(vllm_config.kv_transfer_config.engine_id or "")
    return _joined(options, options.node or default_node_name(engine_id))


def _joined(options: Options, name: str) -> Recording:
    """A node of its own."""
    from kvferry.node.agent.agent import NodeAgent
    from kvferry.node.agent.credentials import settings_from
    from kvferry.node.agent.settings import Identity
    from kvferry.node.outbox.outbox import Outbox

    settings = settings_from(
        options.nats_url, name, options.nats_credentials, "kv_connector_extra_config"
    )
    outbox = Outbox()
    agent = NodeAgent(settings, outbox)
    agent.start()
    agent.join(
        Identity(
            space=ROUTER_SPACE,
            incarnation=secrets.token_hex(8),
            version=version("kvferry"),
            role=ROLE,
        )
    )
    return Recording(outbox, agent=agent)
