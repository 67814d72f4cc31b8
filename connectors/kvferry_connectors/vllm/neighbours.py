"""The node of this engine in the ledger, for other connectors in the same process.

Under ``MultiConnector`` several connectors of ours serve one engine, and an engine is one node:
whoever joins the ledger says so here, and the others write their facts through it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.node.outbox.outbox import Outbox

_lock = threading.Lock()
_outboxes: dict[str, Outbox] = {}


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


def outbox_of(vllm_config: Any) -> Outbox | None:
    """Where the node of this engine takes facts; ``None`` without a node."""
    with _lock:
        return _outboxes.get(_engine_of(vllm_config))


def _engine_of(vllm_config: Any) -> str:
    """The id that ``MultiConnector`` gives to all its children."""
    return str(vllm_config.kv_transfer_config.engine_id or "")
