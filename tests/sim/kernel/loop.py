"""asyncio on simulated threads: stock tasks and handles over virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.sim.kernel.kernel import Kernel, Sleeper, running


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, *args: Any, serial: int, **kwargs: Any) -> None:
        self._serial = serial
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future[Any]):
    """The same for futures."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, serial: int) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class _Selector:
    """Waits for nothing but time and calls from other threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._thread: Sleeper | None = None
        self._called = False

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            return []
        self._thread = self._kernel.current_thread()
        if not self._called:
            self._kernel.park(timeout, "events")
        self._called = False
        return []

    def call(self) -> None:
        self._called = True
        if self._thread is not None and self._thread is not self._kernel.current:
            self._kernel.wake(self._thread)


class SimLoop(asyncio.BaseEventLoop):
    """An event loop that runs on one simulated thread."""

    def __init__(self) -> None:
        super().__init__()
        self._kernel = running()
        self._selector = _Selector(self._kernel)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(_ignore)

    def time(self) -> float:
        return self._kernel.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self, serial=next(self._kernel.serials))

    def run_forever(self) -> None:
        """Until stopped. No hook for asynchronous generators: these belong to no one loop here."""
        thread = self._kernel.current_thread()
        self._thread_id = id(thread)  # type: ignore[assignment]
        thread.loop = self
        asyncio._set_running_loop(self)
        try:
            while True:
                self._run_once()  # type: ignore[attr-defined]
                if self._stopping:  # type: ignore[has-type]
                    break
        finally:
            self._stopping = False
            self._thread_id = None  # type: ignore[assignment]
            thread.loop = None
            asyncio._set_running_loop(None)

    async def shutdown_asyncgens(self) -> None:
        return

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **given: Any
    ) -> asyncio.Task[Any]:
        return SimTask(work, loop=loop, serial=next(self._kernel.serials), **given)

    def _process_events(self, events: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        if not self._kernel.over:
            self._selector.call()


class SimPolicy(asyncio.DefaultEventLoopPolicy):
    """``asyncio.new_event_loop`` gives simulated ones."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return SimLoop()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio has to say of tasks that were cut off at the end of a run, or killed."""
