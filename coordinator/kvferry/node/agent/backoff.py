"""How long to wait before something is tried again."""

from __future__ import annotations

import asyncio

from kvferry.node.agent.settings import NodeSettings


class Backoff:
    """Twice as long each time, within the bounds of ``reconnect_min_s`` and ``reconnect_max_s``."""

    def __init__(self, settings: NodeSettings) -> None:
        self._next_s = settings.reconnect_min_s
        self._most_s = settings.reconnect_max_s

    async def wait(self, *, longest: bool = False) -> None:
        """Before the next attempt; ``longest`` where trying often does not help."""
        now_s = self._most_s if longest else self._next_s
        self._next_s = min(2 * now_s, self._most_s)
        await asyncio.sleep(now_s)
