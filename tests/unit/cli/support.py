"""A small ledger of one conversation, written through the ledger's own API."""

from __future__ import annotations

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    BLOCKS,
    COORD,
    FACTS,
    AnyEvent,
    LeaderElected,
    NodeJoined,
    PinEnded,
    PolicySet,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    Transferred,
)
from kvferry.core.retention_settings import RetentionSettings
from kvferry.ids import short_hashes
from kvferry.ledger.codec import encode
from kvferry.ledger.subjects import lane_subject
from kvferry.ports.log import LogPort

SPACE = "tiny-0123456789ab"
OTHER_SPACE = "tiny-ba9876543210"
WALL_MS = 1_780_000_000_000
COMPONENTS = {
    "model": "tiny@000000000001",
    "dtype": "bfloat16",
    "block_size": "32",
    "hash_scheme": "sha256_cbor:0011223344556677",
}
REQUEST = "chatcmpl-turn-2-p"


class Writer:
    """One node's record: numbers its events per lane as the outbox does."""

    def __init__(
        self, log: LogPort, node: str, *, space: str = SPACE, incarnation: str = "", epoch: int = 1
    ) -> None:
        self.log = log
        self.node = node
        self.space = space
        self.incarnation = incarnation or f"{node:0>16}"
        self.epoch = epoch
        self._next = {FACTS: 1, BLOCKS: 1, COORD: 1}

    async def write(self, *events: AnyEvent, lane: str = FACTS, cause: str = "") -> None:
        batch = Batch(
            space=self.space,
            node=self.node,
            incarnation=self.incarnation,
            epoch=self.epoch,
            lane=lane,
            seq=self._next[lane],
            entries=tuple(Entry(event, cause, WALL_MS) for event in events),
        )
        self._next[lane] += len(events)
        subject = lane_subject(self.space, self.node, lane)
        await self.log.append(subject, encode(batch), message_id=batch.message_id)

    async def join(
        self,
        *,
        address: str = "127.0.0.1:9",
        components: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
        role: str = "",
    ) -> None:
        await self.write(
            NodeJoined(
                incarnation=self.incarnation,
                epoch=self.epoch,
                address=address,
                block_size=32,
                components=COMPONENTS if components is None else components,
                backends=("tcp",),
                blocks=512,
                block_bytes=65_536,
                warnings=warnings,
                version="0.1.0",
                role=role,
            )
        )


def chain(count: int) -> list[bytes]:
    """Hashes of ``count`` blocks that only resemble real ones."""
    return [bytes([i + 1]) * 32 for i in range(count)]


async def converse(log: LogPort, *, address: str = "127.0.0.1:9") -> tuple[Writer, Writer]:
    """D answers turn 1 and offers it; P pulls 8 blocks of it for turn 2. Returns P's and D's."""
    p, d = Writer(log, "p0"), Writer(log, "d0")
    hashes = chain(8)
    await p.join(role="prefill", address=address)
    await d.join(role="decode", address=address)
    await d.write(
        Retained(
            offer="d.1", rev=1, tier="cache", count=8, tail=hashes[-1],
            hashes=short_hashes(hashes, 4), request="chatcmpl-turn-1-d", session="s-1",
        )
    )  # fmt: skip
    await d.write(
        RequestEnded(
            request="chatcmpl-turn-1-d", session="s-1", prompt_tokens=200, computed_tokens=200,
            output_tokens=56, ttft_ms=80.0, miss="nothing_held",
        )
    )  # fmt: skip
    await p.write(
        Requested(
            request=REQUEST, transfer="p.1", source="d0", source_incarnation=d.incarnation,
            wanted=9, granted=8, backend="tcp", basis="hint", predicted_ms=3.0, recompute_ms=90.0,
            session="s-1",
        )
    )  # fmt: skip
    await d.write(PinEnded(transfer="p.1", target="p0", granted=8, how="intact", held_ms=4.0))
    await p.write(
        Transferred(
            transfer="p.1", request=REQUEST, source="d0", start=0, count=8, tokens=256,
            bytes=524_288, backend="tcp", read_ms=2.0, total_ms=4.5,
        ),
        RequestEnded(
            request=REQUEST, session="s-1", prompt_tokens=300, pulled_tokens=256,
            computed_tokens=44, output_tokens=1, ttft_ms=20.0, source="d0", pull_ms=4.5,
        ),
        Requested(request="chatcmpl-other", wanted=3, miss="nothing_held"),
        RequestEnded(
            request="chatcmpl-other", prompt_tokens=100, computed_tokens=100, output_tokens=1,
            ttft_ms=30.0, miss="nothing_held",
        ),
    )  # fmt: skip
    await p.write(Produced(request=REQUEST, start=8, count=1, tail=bytes([9]) * 32), lane=BLOCKS)
    return p, d


async def keep_otherwise(log: LogPort) -> None:
    """An operator sets how all nodes keep, and that D leases nothing."""
    whole, own = RetentionSettings(free_watermark=0.2), RetentionSettings(lease_budget=0.0)
    await Writer(log, "c-1").write(
        LeaderElected(term=1, replica="c-1"),
        PolicySet(term=1, version=1, mode="on", retention=whole),
        PolicySet(term=1, version=2, mode="on", node="d0", retention=own),
        lane=COORD,
    )
