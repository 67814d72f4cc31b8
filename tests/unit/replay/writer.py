"""A conversation over two engines and a router, written as they would write it."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.daemon.support import BLOCK, SPACE, chain, offer

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    NodeJoined,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import encode
from kvferry.ledger.subjects import lane_subject

PROMPT = chain("talk", 64)
TURN = "rt-5f2c9a417d"
PREFILL = f"cmpl-{TURN}-p-0"
DECODE = f"cmpl-{TURN}-d-0"


class Records:
    """The lanes of several nodes."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self._next: dict[tuple[str, str, str], int] = {}

    async def write(
        self,
        node: str,
        *events: AnyEvent,
        lane: str = "facts",
        space: str = SPACE,
        cause: str = "",
    ) -> int:
        key = (space, node, lane)
        seq = self._next.get(key, 1)
        self._next[key] = seq + len(events)
        batch = Batch(
            space=space,
            node=node,
            incarnation=f"{node:0>16}",
            epoch=1,
            lane=lane,
            seq=seq,
            entries=tuple(Entry(event=event, cause=cause) for event in events),
        )
        stored: int = await self.log.append(
            lane_subject(space, node, lane), encode(batch), message_id=batch.message_id
        )
        return stored

    async def join(self, node: str, space: str = SPACE) -> None:
        await self.write(
            node,
            NodeJoined(
                incarnation=f"{node:0>16}",
                epoch=1,
                address="127.0.0.1:1",
                block_size=0 if space == ROUTER_SPACE else BLOCK,
                backends=("tcp",),
            ),
            space=space,
        )


async def write_conversation(log: Any) -> int:
    """Turn 2 of a conversation: P pulls 1,024 tokens from D, D then pulls from P."""
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    await records.join("r0", ROUTER_SPACE)
    await records.write("d0", offer("d0.1", PROMPT, request="cmpl-earlier-d-0"))
    # The source's record may be stored before the target's.
    await records.write("d0", PinEnded(transfer="p0.7", target="p0", granted=64, how="intact"))
    await records.write("p0", *pull("p0.7", PREFILL, "d0"))
    await records.write(
        "p0", Produced(request=PREFILL, start=64, count=2, tail=b"t" * 32), lane="blocks"
    )
    await records.write("p0", offer("p0.1", PROMPT, request=PREFILL))
    await records.write(
        "d0",
        Requested(request=DECODE, external_id=f"{TURN}-d", wanted=66, miss="too_dear"),
        RequestEnded(
            request=DECODE,
            external_id=f"{TURN}-d",
            prompt_tokens=1060,
            local_tokens=1040,
            computed_tokens=20,
        ),
    )
    await records.write("p0", Evicted(offer="p0.1", rev=2, keep=0, reason="reuse", count=64))
    await records.write(
        "p0",
        Requested(request="cmpl-failing-0", transfer="p0.8", source="d0", wanted=9, granted=9),
        TransferFailed(
            transfer="p0.8", request="cmpl-failing-0", source="d0", stage="settle", reason="void"
        ),
        RequestEnded(request="cmpl-failing-0", prompt_tokens=150, computed_tokens=150),
        Requested(request="cmpl-missing-0", wanted=9, miss="diverged@1536"),
        RequestEnded(request="cmpl-missing-0", prompt_tokens=150, computed_tokens=150),
    )
    return await records.write(
        "r0",
        TurnEnded(
            request=TURN,
            prefill_node="p0",
            decode_node="d0",
            prefill_request=PREFILL,
            decode_request=DECODE,
        ),
        space=ROUTER_SPACE,
    )


def pull(transfer: str, request: str, source: str) -> tuple[AnyEvent, ...]:
    return (
        Requested(
            request=request,
            external_id=request.removeprefix("cmpl-").removesuffix("-0"),
            transfer=transfer,
            source=source,
            wanted=66,
            granted=64,
            basis="hint",
            backend="tcp",
        ),
        Transferred(
            transfer=transfer,
            request=request,
            source=source,
            start=0,
            count=64,
            tokens=1024,
            bytes=64 * 4096,
            backend="tcp",
            read_ms=20.0,
            total_ms=31.0,
        ),
        RequestEnded(
            request=request,
            prompt_tokens=1060,
            pulled_tokens=1024,
            computed_tokens=36,
            source=source,
            ttft_ms=60.0,
            pull_ms=31.0,
        ),
    )


def altered(event: Retained) -> Retained:
    """The same event, but one block shorter."""
    return msgspec.structs.replace(event, count=event.count - 1)
