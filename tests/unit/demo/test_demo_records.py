"""What the demo reads out of a ledger, from events as nodes write them."""

from __future__ import annotations

import asyncio

import pytest

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    FACTS,
    Event,
    NodeJoined,
    PinEnded,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.ledger.codec import encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import facts_subject
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.figures import Reconciled
from kvferry_connectors.demo.ledgercheck import Counted, reconcile, unbalanced, unsettled
from kvferry_connectors.demo.records import Records

BOUND_S = 15.0
LIVES = {"p0": "a" * 16, "d0": "b" * 16, "router": "c" * 16}


class Writer:
    """Writes events into a log as nodes do."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._sent = 0

    async def __call__(self, node: str, *events: Event) -> None:
        self._sent += 1
        batch = Batch(
            space="s",
            node=node,
            incarnation=LIVES[node],
            epoch=1,
            lane=FACTS,
            seq=self._sent,
            entries=tuple(Entry(event) for event in events),  # type: ignore[arg-type]
        )
        await self._log.append(
            facts_subject("s", node), encode(batch), message_id=f"{node}{self._sent}"
        )


def wanted(transfer: str = "t1") -> Requested:
    return Requested(request="cmpl-p", transfer=transfer, source="d0", basis="plan")


def moved(transfer: str = "t1") -> Transferred:
    return Transferred(
        transfer=transfer,
        request="cmpl-p",
        source="d0",
        start=0,
        count=2,
        tokens=64,
        bytes=10,
        backend="tcp",
    )


def pin(transfer: str = "t1") -> PinEnded:
    return PinEnded(transfer=transfer, target="p0", granted=2, how="intact")


def ended(request: str, local: int, pulled: int, computed: int) -> RequestEnded:
    return RequestEnded(
        request=request,
        external_id="kvf-1",
        prompt_tokens=100,
        local_tokens=local,
        pulled_tokens=pulled,
        computed_tokens=computed,
    )


TURN = TurnEnded(
    request="kvf-1",
    prefill_node="p0",
    decode_node="d0",
    prefill_request="cmpl-p",
    decode_request="cmpl-d",
)


async def test_a_turn_is_there_once_all_of_it_is_stored() -> None:
    log = MemoryLog()
    write = Writer(log)
    async with Records(log) as records:
        waiting = asyncio.create_task(
            records.until(lambda: records.record("kvf-1"), BOUND_S, "the turn")
        )
        await write("router", TURN)
        await write("p0", wanted(), moved(), ended("cmpl-p", 0, 64, 36))
        await records.until(lambda: len(records.facts) >= 4 or None, BOUND_S, "four facts")
        assert records.record("kvf-1") is None
        await write("d0", ended("cmpl-d", 64, 32, 4))
        found = await waiting
    assert found.prefill.pulled_tokens == 64
    assert found.decode.local_tokens == 64
    assert found.wanted.basis == "plan"
    assert found.turn == TURN
    await log.close()


async def test_what_never_comes_is_said() -> None:
    log = MemoryLog()
    async with Records(log) as records:
        with pytest.raises(DemoError, match="did not show a miracle"):
            await records.until(lambda: None, 0.05, "a miracle")
    await log.close()


async def test_the_present_life_of_a_node_is_the_last_that_joined() -> None:
    log = MemoryLog()
    write = Writer(log)

    def joined(incarnation: str) -> NodeJoined:
        return NodeJoined(incarnation=incarnation, epoch=1, address="127.0.0.1:1", block_size=32)

    async with Records(log) as records:
        assert records.incarnation("p0") is None
        await write("p0", joined("1" * 16), joined("2" * 16))
        life = await records.until(lambda: records.incarnation("p0"), BOUND_S, "p0")
    assert life == "2" * 16
    await log.close()


async def test_all_is_settled_when_every_transfer_and_pin_has_its_end() -> None:
    log = MemoryLog()
    write = Writer(log)
    failed = TransferFailed(
        transfer="t2", request="cmpl-x", source="d0", stage="pin", reason="unreachable"
    )
    async with Records(log) as records:
        await write("p0", wanted(), wanted("t2"), moved())
        await records.until(lambda: len(records.facts) == 3 or None, BOUND_S, "facts")
        assert records.settled() is None
        assert unsettled(records) == 1
        await write("p0", failed)
        await write("d0", pin())
        await records.until(records.settled, BOUND_S, "the end")
        assert unsettled(records) == 0
        # A second outcome is as wrong as none.
        await write("p0", moved())
        await records.until(lambda: len(records.facts) == 6 or None, BOUND_S, "facts")
        assert unsettled(records) == 1
    await log.close()


async def test_counts_are_compared_by_process_life() -> None:
    log = MemoryLog()
    write = Writer(log)
    async with Records(log) as records:
        await write("p0", ended("a", 10, 20, 70), ended("b", 0, 0, 100))
        await write("d0", ended("c", 90, 0, 10))
        await records.until(lambda: len(records.facts) == 3 or None, BOUND_S, "facts")
        sources = {"local_compute": 170, "local_cache_hit": 10, "external_kv_transfer": 20}
        same = reconcile(records, Counted("p0", LIVES["p0"], sources))
        other = reconcile(records, Counted("d0", LIVES["d0"], sources))
        assert same == Reconciled("p0", LIVES["p0"], sources, sources)
        assert same.equal
        assert not other.equal
        assert unbalanced(records) == 0
        await write("d0", ended("d", 1, 1, 1))
        await records.until(lambda: len(records.facts) == 4 or None, BOUND_S, "facts")
        assert unbalanced(records) == 1
    await log.close()


async def test_a_message_that_cannot_be_decoded_is_counted() -> None:
    log = MemoryLog()
    write = Writer(log)
    async with Records(log) as records:
        await log.append(facts_subject("s", "p0"), b"\xc1", message_id="bad")
        await write("p0", wanted())
        await records.until(lambda: records.facts or None, BOUND_S, "facts")
        assert records.undecodable == 1
    await log.close()
