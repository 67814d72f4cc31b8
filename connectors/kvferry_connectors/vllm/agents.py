"""The node agent of an engine, from the connector's options."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvferry.errors import ConfigError
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.truth import EngineTruth


def node_agent(
    options: Options,
    node: str,
    outbox: Outbox,
    on_mode: Callable[[str], None],
    book: Book,
    truth: EngineTruth,
) -> NodeAgent:
    """An agent that is not started yet; it asks ``book`` and ``truth`` on its own thread.

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
    return NodeAgent(settings, outbox, on_mode=on_mode, inventory=book.inventory, truth=truth)
