"""A ledger whose store times are given, so that a story can be written down word for word."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from tests.unit.daemon.support import STRIDE, chain

from kvferry.core.events import RequestEnded, Retained
from kvferry.ids import short_hashes
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import stream_of
from kvferry.ports.log import Stored
from kvferry.replay.stories import Story

START_MS = 1_780_000_000_000
TALK = chain("talk", 64)


class DatedLog(MemoryLog):
    """Stores at :attr:`now_s` seconds after the start."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._times: dict[tuple[str, int], int] = {}

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        seq = await super().append(
            subject, data, message_id=message_id, expected_last=expected_last
        )
        self._times[stream_of(subject), seq] = START_MS + round(1_000 * self.now_s)
        return seq

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        async for one in super().read(stream, start=start, follow=follow, subject=subject):
            yield msgspec.structs.replace(one, stored_ms=self._times[stream, one.seq])


def kept(offer: str, blocks: int, request: str, session: str = "", tier: str = "cache") -> Retained:
    """The first blocks of the one conversation."""
    return Retained(
        offer=offer,
        rev=1,
        tier=tier,
        count=blocks,
        tail=TALK[blocks - 1],
        hashes=short_hashes(TALK[:blocks], STRIDE),
        request=request,
        session=session,
    )


def computed(request: str, tokens: int, miss: str = "", session: str = "") -> RequestEnded:
    return RequestEnded(
        request=request,
        session=session,
        prompt_tokens=tokens,
        computed_tokens=tokens,
        output_tokens=8,
        ttft_ms=120.0,
        prefill_ms=110.0,
        total_ms=400.0,
        miss=miss,
    )


def written(story: Story) -> str:
    """The story as lines: seconds and events, the conclusion, and what became of the KV."""
    lines = [f"{(one.stored_ms - START_MS) / 1_000:6.1f} s  {one.text}" for one in story.items]
    lines += ["", story.conclusion]
    lines += [f"why: {one.text}" for one in story.causes]
    return "\n".join(lines) + "\n"
