"""Ending tasks for sure, in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

logger = logging.getLogger("kvferry.node")

CANCEL_AGAIN_S = 0.1
END_MAX_S = 1.0
"""For all tasks together."""


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and await them.

    A client library may swallow a cancellation, so that one is not enough; and whatever does
    not end within :data:`END_MAX_S` is named in the log and left alone.
    """
    clock = asyncio.get_running_loop().time
    until_s = clock() + END_MAX_S
    running = {task for task in tasks if not task.done()}
    while running and clock() < until_s:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
    if running:
        names = ", ".join(sorted(task.get_name() for task in running))
        logger.error("these tasks do not end and are left behind: %s", names)
