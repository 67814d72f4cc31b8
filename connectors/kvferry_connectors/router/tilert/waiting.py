"""Requests waiting for a slot, in the order in which they came."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from kvferry.errors import SlotError, SlotsBusy, SlotsUnavailable
from kvferry.node.slots import Slot, Slots
from kvferry_connectors.router.errors import Answer, RouterError, error_answer

LOOK_EVERY_S = 1.0
"""News of a free node may be lost, and of one that others used there are none: so often the head
of the queue looks again."""
_RETRY_MIN_S = 1.0
_DOWN_RETRY_S = 2.0
DOWN = "down"
_UNSURE, _NO_COORDINATOR = "unsure", "no_coordinator"
"""Reasons of the coordinator's client."""


class NoSlot(RouterError):
    """No node can serve the request now.

    Attributes:
        why: in one word: ``full``, :data:`DOWN` or ``no_coordinator``.
        retry_after_s: when to try again.
    """

    def __init__(self, why: str, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.why = why
        self.retry_after_s = max(_RETRY_MIN_S, retry_after_s)

    def answer(self) -> Answer:
        """429 where waiting helps, 503 where somebody has to do something first."""
        headers = {"retry-after": str(math.ceil(self.retry_after_s))}
        if self.why == "full":
            message = f"every TileRT node is in use: {self}"
            return error_answer(429, "rate_limit_error", message, headers)
        message = f"no TileRT node can serve this request: {self}"
        return error_answer(503, "service_unavailable_error", message, headers)


class View(Protocol):
    """The pool's nodes as one turn may use them."""

    def candidates(self) -> list[str]:
        """Names of usable nodes, the best first."""
        ...

    def any_up(self) -> bool:
        """Whether waiting can help."""
        ...

    def states(self) -> str:
        """Each node with its trouble, for people."""
        ...


class SlotQueue:
    """Hands slots out first come, first served, to at most ``waiting_max`` waiting requests."""

    def __init__(self, slots: Slots, waiting_max: int, wait_max_s: float) -> None:
        self._slots = slots
        self._waiting_max = waiting_max
        self._wait_max_s = wait_max_s
        self._head = asyncio.Lock()
        self._retry_after_s = _RETRY_MIN_S
        self.waiting = 0
        """Requests that are in the queue now, the one at its head included."""

    async def take(self, view: View, request: str, session: str, *, since: float | None) -> Slot:
        """A slot of one of the nodes that ``view`` names at the time.

        Args:
            since: ``time.monotonic()`` when the request began to wait; ``None`` if it does not
                wait, and a full pool is told at once.

        Raises:
            NoSlot: none in time.
        """
        if self._head.locked() and (since is None or self.waiting >= self._waiting_max):
            raise self._full(f"{self.waiting} requests wait already")
        began = time.monotonic() if since is None else since
        until = began if since is None else began + self._wait_max_s
        async with self._in_line(None if since is None else until - time.monotonic()):
            while True:
                pause_s = LOOK_EVERY_S
                names = view.candidates()
                try:
                    if names:
                        waited_s = time.monotonic() - began
                        return await self._slots.acquire(names, request, session, waited_s=waited_s)
                    if not view.any_up():
                        raise NoSlot(DOWN, view.states(), _DOWN_RETRY_S)
                    trouble = view.states()
                except SlotsBusy as busy:
                    self._retry_after_s = busy.retry_after_s
                    pause_s = min(pause_s, busy.retry_after_s)
                    trouble = str(busy)
                except SlotsUnavailable as error:
                    if error.reason != _UNSURE:
                        why = _NO_COORDINATOR if error.reason == _NO_COORDINATOR else DOWN
                        raise NoSlot(why, str(error), _DOWN_RETRY_S) from error
                    trouble = str(error)  # Ends by itself, though it may take long.
                except SlotError as error:
                    raise NoSlot(DOWN, str(error), _DOWN_RETRY_S) from error
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise self._full(trouble)
                await self._slots.freed(min(pause_s, left_s))

    def _full(self, detail: str) -> NoSlot:
        return NoSlot("full", detail, self._retry_after_s)

    @asynccontextmanager
    async def _in_line(self, within_s: float | None) -> AsyncIterator[None]:
        """First in the queue, inside the block."""
        self.waiting += 1
        try:
            try:
                async with asyncio.timeout(within_s):
                    await self._head.acquire()
            except TimeoutError as error:
                raise self._full(f"{self.waiting - 1} requests wait longer") from error
            try:
                yield
            finally:
                self._head.release()
        finally:
            self.waiting -= 1
