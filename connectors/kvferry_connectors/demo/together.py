"""Several pieces of work at a time, with one error to show."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of it; the first failure cancels the rest and is raised as it was."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def all_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of it to its end, whatever fails; then the first failure is raised."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
