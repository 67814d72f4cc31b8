"""Signals that end what a command does, and leave it time to end cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Set by Ctrl-C, SIGTERM or a signal of ``also``. A second signal ends the process at once."""

    def __init__(self, also: tuple[signal.Signals, ...] = ()) -> None:
        self.event = asyncio.Event()
        self._signals = SIGNALS + also

    def __enter__(self) -> StopRequest:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def _on_signal(self) -> None:
        self._release()
        self.event.set()

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)


async def unless_stopped(stop: StopRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """Run ``work`` to its end; when ``stop`` is set first, it is cancelled and None is given."""
    working = asyncio.create_task(work, name="work")
    stopping = asyncio.create_task(stop.event.wait(), name="stop request")
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()
