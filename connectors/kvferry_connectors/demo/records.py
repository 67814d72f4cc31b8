"""The ledger as the demo reads it: every fact as it is stored, and what one turn left there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kvferry.core.envelope import Batch
from kvferry.core.events import (
    Event,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.errors import CodecError
from kvferry.ledger.codec import decode
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.settings import PREFILL

E = TypeVar("E", bound=Event)
T = TypeVar("T")


@dataclass(frozen=True)
class Fact:
    """One event, with who wrote it."""

    seq: int
    space: str
    node: str
    incarnation: str
    event: Event


@dataclass(frozen=True)
class TurnRecord:
    """What the ledger says of one turn of the router."""

    turn: TurnEnded
    prefill: RequestEnded
    decode: RequestEnded
    wanted: Requested
    """P's admission: which source, found how."""


def facts_of(stored: Stored) -> list[Fact]:
    """The events of one message.

    Raises:
        CodecError: it cannot be decoded.
    """
    batch: Batch = decode(stored.data)
    return [
        Fact(stored.seq, batch.space, batch.node, batch.incarnation, entry.event)
        for entry in batch.entries
    ]


class Records:
    """Follows the facts stream. Use as an async context manager."""

    def __init__(self, ledger: LogPort) -> None:
        self._ledger = ledger
        self.facts: list[Fact] = []
        self.undecodable = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Records:
        self._task = asyncio.create_task(self._follow(), name="demo-records")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, find: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """What ``find`` returns once that is not None; asked again after every new fact.

        Raises:
            DemoError: it stays None for ``timeout_s``, or the ledger cannot be read.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                while (found := find()) is None:
                    assert self._task is not None
                    if self._task.done():
                        break
                    await self._changed.wait()
                return found  # type: ignore[return-value]
        raise DemoError(f"the ledger did not show {what} within {timeout_s:.0f} s")

    def of(self, kind: type[E]) -> Iterator[tuple[Fact, E]]:
        """All facts of one kind, in order."""
        for fact in self.facts:
            if isinstance(fact.event, kind):
                yield fact, fact.event

    def incarnation(self, node: str) -> str | None:
        """The present process life of a node, as the ledger knows it."""
        found = None
        for fact, event in self.of(NodeJoined):
            if fact.node == node:
                found = event.incarnation
        return found

    def left(self, incarnation: str) -> bool | None:
        """True once the leader declared that process life gone, else None."""
        return any(e.incarnation == incarnation for _, e in self.of(NodeLeft)) or None

    def record(self, request: str) -> TurnRecord | None:
        """The turn that the router calls ``request``, once all of it is stored."""
        turn = next((e for _, e in self.of(TurnEnded) if e.request == request), None)
        ended = {f.node: e for f, e in self.of(RequestEnded) if e.external_id == request}
        if turn is None or not {PREFILL, turn.decode_node} <= ended.keys():
            return None
        prefill = ended[PREFILL]
        wanted = next((e for _, e in self.of(Requested) if e.request == prefill.request), None)
        if wanted is None:
            return None
        return TurnRecord(turn, prefill, ended[turn.decode_node], wanted)

    def settled(self) -> bool | None:
        """True once every transfer has its outcome and every pin its end, else None."""
        wanted = {e.transfer for _, e in self.of(Requested) if e.transfer}
        done = {e.transfer for _, e in self.of(Transferred)}
        failed = {e.transfer for _, e in self.of(TransferFailed)}
        ended = {e.transfer for _, e in self.of(PinEnded)}
        return (wanted == done | failed and done <= ended) or None

    async def _follow(self) -> None:
        try:
            async for stored in self._ledger.read(FACTS_STREAM, follow=True):
                try:
                    new = facts_of(stored)
                except CodecError:
                    self.undecodable += 1
                    continue
                async with self._changed:
                    self.facts += new
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()
