"""Long-running tasks that outlive their own bugs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("kvferry.daemon")

RESTART_S = 0.5


class Tasks:
    """Runs each task again when it fails; counts the failures by name."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` until it returns or :meth:`close` is called."""
        self._tasks.append(asyncio.create_task(self._keep(name, work), name=f"kvferry-{name}"))

    async def close(self) -> None:
        """Cancel and await every task."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                self.failures[name] = self.failures.get(name, 0) + 1
                log.exception("the %s failed; it starts again in %.1f s", name, RESTART_S)
                await asyncio.sleep(RESTART_S)
