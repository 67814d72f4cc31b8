"""How much an engine keeps: its own options, and over them what an operator set while it runs."""

from __future__ import annotations

import msgspec

from kvferry.core.retention import Retention
from kvferry.core.retention_settings import RetentionSettings
from kvferry.core.retention_value import Budgets, Rules
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.options import Options


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force on an engine; sizes in blocks of its pool."""

    rules: Rules
    lease_blocks: int
    watermark_blocks: int
    host_share: float
    """Of the host tier, what may be in use."""

    def host_blocks(self, host: HostTier | None) -> int:
        """Blocks that the host tier may hold."""
        return int(host.table.slots * self.host_share) if host is not None else 0

    def exceeded(self, retention: Retention, host: HostTier | None) -> Budgets | None:
        """What may be kept, where more is: an operator has lowered a budget. Otherwise None."""
        host_blocks = self.host_blocks(host)
        if retention.leased_blocks <= self.lease_blocks and retention.host.blocks <= host_blocks:
            return None
        return Budgets(lease_blocks=self.lease_blocks, host_blocks=host_blocks)


def limits(options: Options, settings: RetentionSettings, pool_blocks: int) -> Limits:
    """What is in force on an engine with so many blocks: ``settings`` over its ``options``."""
    given = settings.given()
    host_share = given.pop("host_budget", 1.0)
    options = msgspec.structs.replace(options, **given)
    return Limits(
        rules=Rules(lease_ms=max(1, options.lease_ms), retain_max_ms=options.retain_max_ms),
        lease_blocks=options.lease_blocks(pool_blocks),
        watermark_blocks=options.watermark_blocks(pool_blocks),
        host_share=host_share,
    )
