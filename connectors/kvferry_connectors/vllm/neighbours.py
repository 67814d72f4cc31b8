"""The node of this engine in the ledger, for other connectors in the same process.

Under ``MultiConnector`` several connectors of ours serve one engine, and an engine is one node:
whoever joins the ledger says so here, and the others write their facts through it and learn what
space it is in.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from kvferry.node.outbox.outbox import Outbox

_lock = threading.Lock()
_outboxes: dict[str, Outbox] = {}
_spaces: dict[str, SpaceFacts] = {}


class SpaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of its space."""

    space: str
    components: dict[str, str]
    block_tokens: int
    block_bytes: int
    """Of one rank."""
    ranks: int
    algorithm: str
    """vLLM's ``--prefix-caching-hash-algo``."""
    root: bytes
    """Parent of a chain's first block."""
    key: bytes
    """The cluster key."""


def offer(vllm_config: Any, outbox: Outbox) -> None:
    """This engine has a node; its facts go through ``outbox``."""
    with _lock:
        _outboxes[_engine_of(vllm_config)] = outbox


def withdraw(outbox: Outbox) -> None:
    """The node that writes through ``outbox`` leaves; nothing happens where none does."""
    with _lock:
        for engine, known in list(_outboxes.items()):
            if known is outbox:
                del _outboxes[engine]
                _spaces.pop(engine, None)


def joined(vllm_config: Any, facts: SpaceFacts) -> None:
    """The node of this engine is in its space."""
    with _lock:
        _spaces[_engine_of(vllm_config)] = facts


def space_of(vllm_config: Any) -> SpaceFacts | None:
    """What space the node of this engine is in; ``None`` before it is in one, or without a node.

    Takes no lock: an engine's thread asks.
    """
    return _spaces.get(_engine_of(vllm_config))


def outbox_of(vllm_config: Any) -> Outbox | None:
    """Where the node of this engine takes facts; ``None`` without a node."""
    with _lock:
        return _outboxes.get(_engine_of(vllm_config))


def _engine_of(vllm_config: Any) -> str:
    """The id that ``MultiConnector`` gives to all its children."""
    return str(vllm_config.kv_transfer_config.engine_id or "")
