"""Nodes that write facts and heartbeats as engines do, and coordinators with quick settings."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    AnyEvent,
    NodeJoined,
    Requested,
    RequestEnded,
    Retained,
    Transferred,
)
from kvferry.core.messages import (
    Control,
    Heartbeat,
    PlanAnswer,
    PlanRequest,
    control_subject,
    encode,
    heartbeat_subject,
    plan_subject,
    query_subject,
)
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.messages import Query, decode_answer, encode_query
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.ids import sample_stride, short_hashes
from kvferry.ledger.codec import encode as encode_batch
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject, lane_subject
from kvferry.ports.log import Reply

SPACE = "model-0123456789ab"
BLOCK = 16
STRIDE = sample_stride(BLOCK)
BOUND_S = 20.0


async def until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    """Wait until ``condition()`` holds."""
    try:
        async with asyncio.timeout(bound_s):
            while not condition():  # noqa: ASYNC110 -- it waits for any condition at all
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {bound_s:g} s: {what}") from None


def chain(name: str, blocks: int, shared: int = 0, root: str = "") -> list[bytes]:
    """Chain hashes of a prompt; the first ``shared`` blocks are those of ``root``."""
    hashes: list[bytes] = []
    last = b""
    for number in range(blocks):
        text = root if number < shared else name
        last = hashlib.sha256(last + text.encode() + number.to_bytes(4, "big")).digest()
        hashes.append(last)
    return hashes


def offer(
    offer_id: str, hashes: list[bytes], *, rev: int = 1, request: str = "", tier: str = "cache"
) -> Retained:
    return Retained(
        offer=offer_id,
        rev=rev,
        tier=tier,
        count=len(hashes),
        tail=hashes[-1],
        hashes=short_hashes(hashes, STRIDE),
        request=request,
        ttl_ms=0 if tier == "cache" else 60_000,
    )


class FakeNode:
    """Stands in for an engine: writes to the ledger and says that it lives."""

    def __init__(self, log: Any, name: str, incarnation: str = "", space: str = SPACE) -> None:
        self.log = log
        self.name = name
        self.space = space
        self.incarnation = incarnation or (name * 16)[:16]
        self.epoch = 1
        self.seq = 0
        self.controls: list[Control] = []
        self._beating: asyncio.Task[None] | None = None
        self._listening = False

    async def join(self, **fields: Any) -> None:
        given: dict[str, Any] = {
            "address": f"127.0.0.1:{7000 + len(self.name)}",
            "block_size": BLOCK,
            "backends": ("tcp",),
            "blocks": 1000,
            "block_bytes": 4096,
        }
        await self.facts(
            NodeJoined(incarnation=self.incarnation, epoch=self.epoch, **(given | fields))
        )

    async def facts(self, *events: AnyEvent) -> int:
        batch = Batch(
            space=self.space,
            node=self.name,
            incarnation=self.incarnation,
            epoch=self.epoch,
            lane="facts",
            seq=self.seq + 1,
            entries=tuple(Entry(event=event) for event in events),
        )
        self.seq += len(events)
        subject = lane_subject(self.space, self.name, "facts")
        seq: int = await self.log.append(subject, encode_batch(batch), message_id=batch.message_id)
        return seq

    async def beat(self) -> None:
        message = Heartbeat(
            node=self.name, space=self.space, incarnation=self.incarnation, epoch=self.epoch
        )
        await self.log.publish(heartbeat_subject(self.space, self.name), encode(message))

    async def start(self, every_s: float = 0.1) -> None:
        """Listen for control and beat until :meth:`stop`."""

        async def on_control(subject: str, data: bytes, reply: Reply | None) -> None:
            self.controls.append(msgspec.msgpack.decode(data, type=Control))

        async def beating() -> None:
            while True:
                await self.beat()
                await asyncio.sleep(every_s)

        if not self._listening:
            self._listening = True
            await self.log.subscribe(control_subject(self.space, self.name), on_control)
        self._beating = asyncio.create_task(beating())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None


def quick(**changes: Any) -> CoordinatorSettings:
    """Settings that let a test see in a second what takes ten in production.

    Not so silence: most tests' nodes write a few facts and never beat, and a busy machine may take
    its time over those. Who is about silence says how long it is.
    """
    given: dict[str, Any] = {
        "silent_after_s": 120.0,
        "announce_every_s": 0.1,
        "beat_every_s": 0.1,
        "takeover_after_s": 0.6,
        "tick_s": 0.05,
    }
    return CoordinatorSettings(**(given | changes))


@asynccontextmanager
async def running(log: Any, **changes: Any) -> AsyncIterator[Coordinator]:
    """A coordinator that has loaded and can be asked."""
    coordinator = Coordinator(log, log, log, quick(**changes))
    task = asyncio.create_task(coordinator.run())
    try:
        await until(coordinator.announcer.listening.is_set, "the coordinator listens")
        yield coordinator
    finally:
        await coordinator.stop()
        await task


async def settled(coordinator: Coordinator, seq: int) -> None:
    await coordinator.projector.reached(seq, BOUND_S)


async def ask(log: Any, coordinator: Coordinator, **query: Any) -> dict[str, Any]:
    data = await log.request(
        query_subject(coordinator.replica), encode_query(Query(**query)), BOUND_S
    )
    return decode_answer(data)


def plan_request(asker: str, hashes: list[bytes], space: str = SPACE) -> PlanRequest:
    return PlanRequest(
        space=space,
        node=asker,
        hashes=short_hashes(hashes, STRIDE),
        stride=STRIDE,
        block_size=BLOCK,
        prompt_tokens=len(hashes) * BLOCK + 3,
    )


async def plan(log: Any, coordinator: Coordinator, request: PlanRequest) -> PlanAnswer:
    data = await log.request(plan_subject(coordinator.replica), encode(request), BOUND_S)
    return msgspec.msgpack.decode(data, type=PlanAnswer)


def pulled(
    request: str, source: str, *, tokens: int, total_ms: float, transfer: str = "t.1"
) -> tuple[AnyEvent, ...]:
    """The facts of a request that pulled ``tokens`` tokens."""
    blocks = tokens // BLOCK
    return (
        Requested(
            request=request,
            transfer=transfer,
            source=source,
            wanted=blocks,
            granted=blocks,
            backend="tcp",
            basis="plan",
        ),
        Transferred(
            transfer=transfer,
            request=request,
            source=source,
            start=0,
            count=blocks,
            tokens=tokens,
            bytes=blocks * 4096,
            backend="tcp",
            read_ms=total_ms,
            total_ms=total_ms,
        ),
        RequestEnded(
            request=request,
            prompt_tokens=tokens + 3,
            pulled_tokens=tokens,
            computed_tokens=3,
            source=source,
        ),
    )


async def intrude(log: MemoryLog, replica: str, term: int, event: object, seq: int = 1) -> None:
    """Another process writes to the coord subject."""
    batch = Batch(
        space=SPACE,
        node=replica,
        incarnation="e" * 16,
        epoch=term,
        lane="coord",
        seq=seq,
        entries=(Entry(event=event),),  # type: ignore[arg-type]
    )
    await log.append(coord_subject(SPACE), encode_batch(batch), message_id=batch.message_id)
