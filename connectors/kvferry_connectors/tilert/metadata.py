"""What the scheduler's side tells the workers, once a step. Pickled, so plain data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True)
class SendOrder:
    """A request whose prompt this step completes."""

    request: str
    """As the engine calls it."""
    rid: str
    host: str
    port: int
    tokens: int
    last_prompt_token: int
    block_ids: tuple[tuple[int, ...], ...]
    """For each KV cache group, from the prompt's first block on."""
    sampling: dict[str, Any] | None = None
    prompt_token_ids: tuple[int, ...] = ()
    within_s: float = 0.0
    """For so long from now its KV may be written to the node; 0: no bound but a send's own."""


@dataclass
class TileRTMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to workers."""

    report_to: str = ""
    """Where outcomes are told, see :mod:`kvferry_connectors.tilert.reports`; empty in most
    steps."""
    orders: list[SendOrder] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
