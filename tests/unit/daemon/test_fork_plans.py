"""A fork burst at the shipped plan service, over a real nats-server; transfers only take time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.unit.daemon.support import (
    FakeNode,
    chain,
    offer,
    plan,
    plan_request,
    running,
    settled,
)

from kvferry.core.events import Requested, Transferred
from kvferry.daemon.coordinator import Coordinator
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect

PROMPT = chain("fork", 64)
BLOCK_BYTES = 96_000_000
MOVE_S = 1.2
"""What 64 such blocks take at the rate that is guessed of a link that nobody knows; long beside
what a busy machine keeps an answer waiting."""
NODES = 8
BOUND_S = 60.0


class Burst:
    """Eight nodes that want what one has; each as its engine would."""

    def __init__(self, ledger: JetStreamLedger, coordinator: Coordinator, *, waits: bool) -> None:
        self.ledger, self.coordinator, self.waits = ledger, coordinator, waits
        self.sent: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def want(self, node: FakeNode) -> None:
        """Ask until it is our turn, pull, and offer what came."""
        asked = msgspec.structs.replace(plan_request(node.name, PROMPT), request=f"r-{node.name}")
        answer = await plan(self.ledger, self.coordinator, asked)
        while self.waits and answer.wait_ms:
            await asyncio.sleep(answer.wait_ms / 1000)
            waited = asked.waited_ms + answer.wait_ms
            asked = msgspec.structs.replace(asked, waited_ms=waited)
            answer = await plan(self.ledger, self.coordinator, asked)
        best = answer.candidates[0]
        transfer = f"t-{node.name}"
        self.sent[best.node] += 1
        self.now[best.node] += 1
        self.most[best.node] = max(self.most[best.node], self.now[best.node])
        await node.facts(
            Requested(
                request=asked.request,
                transfer=transfer,
                source=best.node,
                wanted=len(PROMPT),
                granted=best.blocks,
                basis="plan",
                upto=asked.hashes[-8:],
            )
        )
        await asyncio.sleep(MOVE_S)
        self.now[best.node] -= 1
        await node.facts(
            Transferred(
                transfer=transfer,
                request=asked.request,
                source=best.node,
                start=0,
                count=best.blocks,
                tokens=best.blocks * 16,
                bytes=best.blocks * BLOCK_BYTES,
                backend="tcp",
                read_ms=MOVE_S * 1000,
            ),
            offer(f"{node.name}.1", PROMPT),
        )


@pytest.mark.parametrize("waits", [True, False])
async def test_new_holders_become_sources(tmp_path: Path, waits: bool) -> None:
    with EmbeddedServer(tmp_path / "store") as server:
        ledger = await connect(server.url, name="test")
        await ledger.ensure_streams()
        nodes = [FakeNode(ledger, f"n{number}") for number in range(NODES)]
        holder = FakeNode(ledger, "holder")
        for node in (holder, *nodes):
            await node.join(block_bytes=BLOCK_BYTES)
        last = await holder.facts(offer("h.1", PROMPT))
        async with running(ledger, silent_after_s=BOUND_S) as coordinator:
            await settled(coordinator, last)
            burst = Burst(ledger, coordinator, waits=waits)
            async with asyncio.timeout(BOUND_S):
                await asyncio.gather(*(burst.want(node) for node in nodes))
        await ledger.close()
    assert burst.sent.total() == NODES
    if waits:
        assert burst.sent["holder"] <= NODES / 2
        assert len(burst.sent) >= 3
        assert max(burst.most.values()) <= 3
    else:  # Negative control: who does not wait gets it from the one that has it.
        assert burst.sent["holder"] > NODES / 2
