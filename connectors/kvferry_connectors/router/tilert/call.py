"""One `/pd/decode` on a node, from its request to the end of its slot's lease."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from kvferry.node.slots import CANCELLED, REPLIED, Slot
from kvferry_connectors.router.errors import EngineFailed
from kvferry_connectors.router.tilert.node import Node, cancel
from kvferry_connectors.router.tilert.settings import TilertSettings
from kvferry_connectors.router.tilert.settle import CANCEL_EVERY_S, HEADERS, settle
from kvferry_connectors.router.upstream import post

_BUSY = 429
_CANCELLED = 499
_STALLED = "decode stalled"
_LINE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Ended:
    """How a lease ends: ``how`` is a word for the coordinator, or empty where nobody knows."""

    how: str
    why: str = ""


class NodeBusy(EngineFailed):
    """The node decodes a request that is not ours."""

    def __init__(self, node: str, rid: str) -> None:
        super().__init__(node, f"is busy with {rid or 'a request'} of another router")
        self.rid = rid


class DecodeCall:
    """A node's answer as it comes. :meth:`run` goes on to the reply's end, listened to or not.

    The connection is not closed before the reply's end, not even for a client that left: only the
    reply's end says that the node is done with the request and that its slot may go back.

    Attributes:
        finish: the node's word for why it ended, once :meth:`tokens` ended.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        settings: TilertSettings,
        node: Node,
        slot: Slot,
        rid: str,
        content: bytes,
    ) -> None:
        self._client = client
        self._settings = settings
        self._node = node
        self._slot = slot
        self._rid = rid
        self._content = content
        self._cancel = asyncio.Event()
        # Not bounded here: a slow client must not hold the slot, and max_tokens bounds it.
        self._come: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self._failed: EngineFailed | None = None
        self._seen = False
        self.finish = ""

    async def tokens(self) -> AsyncIterator[list[int]]:
        """Token ids as they come, the first one included.

        Raises:
            EngineFailed: the node refused, broke off, or its lease was in doubt.
        """
        while (ids := await self._come.get()) is not None:
            yield ids
        if self._failed is not None:
            raise self._failed

    def cancel(self) -> None:
        """Nobody wants the rest. :meth:`run` then ends soon."""
        self._cancel.set()

    async def run(self) -> Ended:
        """Carries the call out; how the lease ends."""
        reading = asyncio.create_task(self._read(), name=f"decode-{self._rid}")
        unwanted = asyncio.create_task(self._cancel.wait())
        try:
            await asyncio.wait({reading, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._stop(reading)
            ended = reading.result() if reading.done() else Ended("", "the cancel had no effect")
        except EngineFailed as error:
            self._fail(error)
            ended = Ended("", str(error))
        finally:
            for task in (reading, unwanted):
                task.cancel()
            await asyncio.gather(reading, unwanted, return_exceptions=True)
            if self.finish:
                self._come.put_nowait(None)
            else:
                self._fail(EngineFailed(self._node.name, "did not finish"))
        return ended

    async def _stop(self, reading: asyncio.Task[Ended]) -> None:
        within_s = self._settings.cancel_within_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not reading.done():
                    await cancel(self._client, self._node, self._rid, within_s)
                    await asyncio.wait({reading}, timeout=CANCEL_EVERY_S)

    async def _read(self) -> Ended:
        node = self._node
        async with post(
            self._client, node.engine, "/pd/decode", self._content, HEADERS
        ) as response:
            if response.status_code == 200:
                return await self._read_lines(response)
            status, content = response.status_code, await response.aread()
        said = _object(content)
        rid = said.get("current_rid")
        if status == _BUSY:
            busy = NodeBusy(node.name, rid if isinstance(rid, str) else "")
            self._fail(busy)
            return Ended("", str(busy))
        refused = EngineFailed(node.name, _refusal(status, said))
        self._fail(refused)  # The client need not wait for what follows.
        if status == _CANCELLED:
            return Ended(CANCELLED)
        # It says that it is done with the request; a confirmed cancel makes that sure.
        doubt = await settle(self._client, node, self._rid, self._settings.settle_within_s)
        return Ended("" if doubt else CANCELLED, doubt or str(refused))

    def _fail(self, error: EngineFailed) -> None:
        """Ends :meth:`tokens` now; the first failure counts."""
        self._failed = self._failed or error
        self._come.put_nowait(None)

    async def _read_lines(self, response: httpx.Response) -> Ended:
        last: dict[str, object] | None = None
        lost = False
        count = 0
        async for line in _lines(response, self._node.name):
            said = _object(line)
            ids = said.get("t")
            if isinstance(ids, list):
                # Until the first token is there the node's buffer held somebody's KV, and only
                # the lease says whose.
                lost = lost or not (self._seen or self._slot.sure())
                self._seen = True
                count += len(ids)
                if lost:
                    self._fail(EngineFailed(self._node.name, "lost its lease while it began"))
                    self.cancel()
                else:
                    self._come.put_nowait([one for one in ids if type(one) is int])
            elif "done" in said or "error" in said:
                last = said
        # Read to the very end: only then the node has let the request go.
        if last is None:
            raise EngineFailed(self._node.name, "ended its stream early")
        if lost:
            return Ended("", str(self._failed))
        return self._end(last, count)

    def _end(self, last: dict[str, object], count: int) -> Ended:
        """What the node's last word means, after ``count`` tokens."""
        node = self._node.name
        if "error" in last:
            self._failed = EngineFailed(node, f"failed: {str(last['error'])[:200]}")
            # Its engine may be at work still.
            return Ended("" if last["error"] == _STALLED else REPLIED, str(self._failed))
        # A first token that ends the answer is sent, but not counted.
        if last.get("n", count) not in (count, count - 1 if count == 1 else count):
            self._failed = EngineFailed(node, f"sent {count} tokens and counts {last['n']}")
            return Ended(REPLIED, str(self._failed))
        self.finish = str(last.get("finish_reason") or "stop")
        return Ended(CANCELLED if self._cancel.is_set() else REPLIED, self.finish)


async def _lines(response: httpx.Response, node: str) -> AsyncIterator[bytes]:
    held = b""
    async for data in response.aiter_raw():
        *whole, held = (held + data).split(b"\n")
        for line in whole:
            yield line
        if len(held) > _LINE_BYTES_MAX:
            raise EngineFailed(node, f"sent a line longer than {_LINE_BYTES_MAX} bytes")
    if held:
        yield held


def _object(content: bytes) -> dict[str, object]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _refusal(status: int, said: dict[str, object]) -> str:
    if said.get("error") == "kv_transfer_timeout":
        return "got no KV from prefill in time: see the prefill engine's log for why it did not go"
    detail = said.get("error") or said.get("detail") or ""
    return f"answered {status}: {str(detail)[:200]}"
