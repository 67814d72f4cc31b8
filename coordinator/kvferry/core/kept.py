"""How a node keeps, all told: what it was started with, and what an operator has set since."""

from __future__ import annotations

import msgspec

from kvferry.core.retention_settings import FREE_WATERMARK, LEASE_BUDGET, RetentionSettings
from kvferry.core.retention_value import Rules
from kvferry.core.state import NodeState


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in blocks of the engine."""

    rules: Rules
    lease_blocks: int
    watermark_blocks: int
    host_blocks: int
    """Of the host tier, so many may be in use."""


def kept(node: NodeState, settings: RetentionSettings) -> Kept:
    """How a node keeps under these settings; the connector's defaults where it does not say with
    what it was started."""
    unsaid, default = node.lease_blocks < 0, Rules()
    lease_ms = default.lease_ms if unsaid else node.lease_ms
    # An engine that was started to lease nothing says a budget of 0, whatever its share is.
    by_default = unsaid or not (node.lease_ms or node.lease_blocks)
    lease_blocks = int(node.blocks * LEASE_BUDGET) if by_default else node.lease_blocks
    watermark = int(node.blocks * FREE_WATERMARK) if unsaid else node.watermark_blocks
    if settings.lease_ms is not None:
        lease_ms = settings.lease_ms
    if settings.lease_budget is not None:
        lease_blocks = int(node.blocks * settings.lease_budget)
    if settings.free_watermark is not None:
        watermark = int(node.blocks * settings.free_watermark)
    retain_max_ms = default.retain_max_ms if node.retain_max_ms < 0 else node.retain_max_ms
    if settings.retain_max_ms is not None:
        retain_max_ms = settings.retain_max_ms
    share = 1.0 if settings.host_budget is None else settings.host_budget
    return Kept(
        rules=Rules(lease_ms=max(1, lease_ms), retain_max_ms=retain_max_ms),
        lease_blocks=lease_blocks if lease_ms > 0 else 0,
        watermark_blocks=watermark,
        host_blocks=int(node.host_blocks * share),
    )
