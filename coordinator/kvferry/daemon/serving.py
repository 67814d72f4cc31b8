"""The event loop of a coordinator's process."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("kvferry.daemon")


def run_serving(work: Coroutine[Any, Any, T]) -> T:
    """Run a server's coroutine to its end, on uvloop where that is installed (extra ``fast``).

    A coordinator spends more time on sockets and wake-ups than on plans, and a fifth less on
    uvloop. Engines' agents stay on asyncio's own loop: they do little, beside somebody else's code.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        log.debug("uvloop is not installed; pip install 'kvferry[fast]' makes plans cheaper")
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
