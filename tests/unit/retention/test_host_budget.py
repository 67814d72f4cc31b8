"""A host tier whose budget an operator lowers."""

from __future__ import annotations

from kvferry.core.leases import HOST
from kvferry.core.retention import Retention
from kvferry.core.retention_actions import END, POLICY
from kvferry.core.retention_value import Budgets, Chain, Memory


def test_what_is_there_longest_leaves_until_the_rest_fits() -> None:
    retention = Retention()
    for number, key in enumerate("abc"):
        blocks = tuple(range(4 * number, 4 * number + 4))
        retention.host.put(0.0, Chain(key=key, blocks=blocks, bytes=4, saved_ms=1.0))
    memory = Memory(free=100, budget=10, host_budget=12)
    for host_blocks, gone in ((12, ""), (9, "a"), (8, ""), (0, "bc")):
        budgets = Budgets(lease_blocks=10, host_blocks=host_blocks)
        ends = retention.fit(1.0, memory, budgets)
        assert [(one.act, one.chain, one.reason, one.tier) for one in ends] == [
            (END, key, POLICY, HOST) for key in gone
        ]
    assert retention.host.blocks == 0
