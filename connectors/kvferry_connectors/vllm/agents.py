"""The node agent of an engine, from the connector's options."""

from __future__ import annotations

import msgspec

from kvferry.errors import ConfigError
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.steering import Steering
from kvferry_connectors.vllm.truth import EngineTruth


def node_agent(
    options: Options,
    node: str,
    outbox: Outbox,
    steering: Steering,
    book: Book,
    truth: EngineTruth,
) -> NodeAgent:
    """An agent that is not started yet; on its own thread it asks ``book`` and ``truth``, and tells
    ``steering``.

    Raises:
        ConfigError: the node's name or a credential cannot be used.
    """
    wanted = {
        "nats_url": options.nats_url,
        "node": node,
        "plan_deadline_ms": float(options.plan_deadline_ms),
        **options.nats_credentials,
    }
    try:
        settings = msgspec.convert(wanted, NodeSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"kv_connector_extra_config: {error}") from error
    return NodeAgent(
        settings,
        outbox,
        on_mode=steering.on_mode,
        on_retention=steering.on_retention,
        inventory=book.inventory,
        truth=truth,
    )
