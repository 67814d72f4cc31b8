"""Ledgers of conversations on small engines, written as the engines would have written them."""

from __future__ import annotations

import msgspec
from tests.unit.daemon.support import BLOCK, SPACE, STRIDE, chain
from tests.unit.replay.dated import START_MS, DatedLog

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    COORD,
    AnyEvent,
    LeaderElected,
    NodeJoined,
    PolicySet,
    Requested,
    RequestEnded,
    Retained,
    Transferred,
)
from kvferry.core.retention_settings import RetentionSettings
from kvferry.ids import SHORT_BYTES, short_hashes
from kvferry.ledger.codec import encode
from kvferry.ledger.subjects import coord_subject, lane_subject
from kvferry.replay.whatif.policy import Policy
from kvferry.replay.whatif.report import Report
from kvferry.replay.whatif.run import whatif

BLOCK_BYTES = 1_000
POOL = 64
"""Blocks of an engine."""
FIRST, GROWS, ANSWER = 16, 4, 2
"""Blocks of a first prompt, that each turn adds, and of an answer."""
PREFILL_MS = 100.0


class Ledger:
    """A ledger under way: each act is written at :attr:`now_s`."""

    def __init__(self) -> None:
        self.log = DatedLog()
        self._next: dict[str, int] = {}
        self._count = self._version = 0

    async def write(self, node: str, *events: AnyEvent, cause: str = "") -> int:
        seq = self._next.get(node, 1)
        self._next[node] = seq + len(events)
        wall_ms = START_MS + round(1_000 * self.log.now_s)
        batch = Batch(
            space=SPACE,
            node=node,
            incarnation=f"{node:0>16}",
            epoch=1,
            lane="facts",
            seq=seq,
            entries=tuple(Entry(event, cause, wall_ms) for event in events),
        )
        subject = lane_subject(SPACE, node, "facts")
        return await self.log.append(subject, encode(batch), message_id=batch.message_id)

    async def leads(self, cost: str) -> int:
        """A coordinator takes the lead."""
        return await self._decide(LeaderElected(term=1, replica="c1", cost=cost))

    async def keeps(self, *, node: str = "", unset: tuple[str, ...] = (), **settings: float) -> int:
        """An operator sets how nodes keep."""
        self._version += 1
        given = RetentionSettings(**settings) if settings else None  # type: ignore[arg-type]
        return await self._decide(
            PolicySet(
                term=1, version=self._version, mode="on", node=node, retention=given, unset=unset
            )
        )

    async def _decide(self, event: AnyEvent) -> int:
        seq = self._next.get("c1", 1)
        self._next["c1"] = seq + 1
        wall_ms = START_MS + round(1_000 * self.log.now_s)
        batch = Batch(
            space=SPACE,
            node="c1",
            incarnation=f"{'c1':0>16}",
            epoch=1,
            lane=COORD,
            seq=seq,
            entries=(Entry(event, "", wall_ms),),
        )
        return await self.log.append(
            coord_subject(SPACE), encode(batch), message_id=batch.message_id
        )

    async def join(self, node: str, *, blocks: int = POOL, role: str = "", **said: int) -> int:
        joined = NodeJoined(
            incarnation=f"{node:0>16}",
            epoch=1,
            address="a:1",
            block_size=BLOCK,
            backends=("tcp",),
            blocks=blocks,
            block_bytes=BLOCK_BYTES,
            role=role,
            **{"lease_blocks": 0, "lease_ms": 30_000, **said},
        )
        return await self.write(node, joined)

    async def turn(
        self,
        node: str,
        talk: str,
        prompt: int,
        *,
        source: str = "",
        pulled: int = 0,
        local: int = 0,
        took_s: float = 0.5,
        leaves: bool = True,
        read_ms: float = 0.0,
        retain_ms: int = 0,
        **asked: object,
    ) -> int:
        """One request: ``prompt``, ``local`` and ``pulled`` in blocks; its client was granted a
        lease of ``retain_ms``. The last message so far."""
        self._count += 1
        request, hashes = f"r{self._count}", chain(talk, prompt + ANSWER)
        transfer = f"{node}.{self._count}" if pulled else ""
        known = {"miss": "" if pulled else "nothing_held", "basis": "plan" if pulled else ""}
        await self.write(
            node,
            msgspec.structs.replace(
                Requested(
                    request=request,
                    transfer=transfer,
                    source=source,
                    wanted=prompt,
                    local_tokens=local * BLOCK,
                    granted=local + pulled if pulled else 0,
                    options=(source,) if pulled else (),
                    session=talk,
                    tail=hashes[prompt // STRIDE * STRIDE - 1][:SHORT_BYTES],
                    **known,
                ),
                **asked,
            ),
        )
        if pulled:
            moved = Transferred(
                transfer=transfer,
                request=request,
                source=source,
                start=local,
                count=pulled,
                tokens=pulled * BLOCK,
                bytes=pulled * BLOCK_BYTES,
                backend="tcp",
                read_ms=read_ms or 1.0 + pulled / 10,
            )
            await self.write(node, moved)
        self.log.now_s += took_s
        computed = (prompt - local - pulled) * BLOCK + 5
        ended = RequestEnded(
            request=request,
            session=talk,
            prompt_tokens=prompt * BLOCK + 5,
            local_tokens=local * BLOCK,
            pulled_tokens=pulled * BLOCK,
            computed_tokens=computed,
            output_tokens=ANSWER * BLOCK,
            ttft_ms=10.0 + computed / 2,
            prefill_ms=10.0 + computed / 2 - 1.0,
        )
        left = Retained(
            offer=f"{node}.{self._count}",
            rev=1,
            tier="cache",
            count=len(hashes),
            tail=hashes[-1],
            hashes=short_hashes(hashes, STRIDE),
            request=request,
            session=talk,
        )
        kept = msgspec.structs.replace(
            left, offer=f"{left.offer}L1", tier="hbm", ttl_ms=retain_ms, why="retain"
        )
        facts = (left, *((kept,) if retain_ms else ()), ended) if leaves else (ended,)
        return await self.write(node, *facts)

    async def crowd(self, node: str, talks: int, turns: int, gap_s: float = 1.0) -> None:
        """More conversations at a time than the node's pool holds: all is computed always."""
        for turn in range(turns):
            for talk in range(talks):
                await self.turn(node, f"{node}-talk-{talk}", FIRST + turn * GROWS)
                self.log.now_s += gap_s

    async def ask(self, policy: Policy | None = None, **more: object) -> Report:
        """Decide it all again."""
        given: dict[str, object] = {"force": True, **more}
        return await whatif(self.log, policy or Policy(), "a test", **given)  # type: ignore[arg-type]
