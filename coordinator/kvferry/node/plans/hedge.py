"""One question to several replicas: the first answer wins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kvferry.core.messages import PlanAnswer
from kvferry.node.agent.tasks import end_tasks

WIDER = 4
"""Each further replica is asked after so many times as long: a slow answer must not cost a question
to everybody, but two frozen replicas must not cost the plan."""

Call = Callable[[str], Coroutine[Any, Any, PlanAnswer | None]]
"""Asks the replica of that name; None when it gives no answer."""


class Hedge:
    """Asks the best replica, further ones after ever longer whiles, and the next after a failure.

    Attributes:
        answer: the first answer, once there is one.
    """

    def __init__(self, call: Call, replicas: Sequence[str]) -> None:
        self.answer: PlanAnswer | None = None
        self._call = call
        self._left = list(replicas)
        self._running: set[asyncio.Task[PlanAnswer | None]] = set()

    async def run(self, hedge_s: float) -> None:
        """Return with :attr:`answer` set, or when every replica failed."""
        self._ask_next()
        patience_s = hedge_s
        while self._running:
            ended, self._running = await asyncio.wait(
                self._running,
                timeout=patience_s if self._left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ended:
                patience_s *= WIDER
                self._ask_next()
            for task in ended:
                answer = task.result()
                if answer is not None:
                    self.answer = answer
                    return
                self._ask_next()

    async def close(self) -> None:
        """Stop asking; awaits every call that still runs."""
        running, self._running = self._running, set()
        await end_tasks(running)

    def _ask_next(self) -> None:
        if self._left:
            self._running.add(asyncio.create_task(self._call(self._left.pop(0))))
