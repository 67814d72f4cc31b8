"""Stands in for ``threading`` and for thread pools in the shipped modules, on simulated threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.kernel.kernel import Sleeper, running


class Lock:
    """Handed over to the one that has waited longest."""

    def __init__(self) -> None:
        self._owner: Sleeper | None = None
        self._held = False
        self._row: deque[Sleeper] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = running()
        if kernel.current is None:  # Set up before the run, or taken down after it.
            self._held = True
            return True
        kernel.may_lose_processor()
        me = kernel.current_thread()
        if not self._held:
            self._held, self._owner = True, me
            return True
        if not blocking:
            return False
        self._row.append(me)
        by_s = None if timeout < 0 else kernel.now_s + timeout
        while self._owner is not me:
            left_s = None if by_s is None else by_s - kernel.now_s
            if not kernel.park(left_s, "lock") and self._owner is not me:
                self._row.remove(me)
                return False
        return True

    def release(self) -> None:
        self._held, self._owner = False, None
        while self._row:
            following = self._row.popleft()
            if following.process.alive:
                self._held, self._owner = True, following
                running().wake(following)
                return

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """The same for a thread that may take it again."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held and self._owner is running().current:
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            super().release()


class Condition:
    """Waiters are woken in order, and get the lock in the order in which they run."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self._waiting: deque[Sleeper] = deque()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        kernel = running()
        me = kernel.current_thread()
        self._waiting.append(me)
        self._lock.release()
        try:
            while True:
                woken = kernel.park(timeout, "condition")
                if me not in self._waiting:
                    return True
                if not woken:
                    self._waiting.remove(me)
                    return False
        finally:
            if not kernel.over:
                self._lock.acquire()

    def wait_for(self, true: Callable[[], Any], timeout: float | None = None) -> Any:
        kernel = running()
        by_s = None if timeout is None else kernel.now_s + timeout
        while not (found := true()):
            left_s = None if by_s is None else by_s - kernel.now_s
            if left_s is not None and left_s <= 0:
                return found
            self.wait(left_s)
        return found

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            running().wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """A flag to wait for."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Sleeper] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            running().wake(one)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = running()
        if self._set:
            return True
        me = kernel.current_thread()
        by_s = None if timeout is None else kernel.now_s + timeout
        self._waiting.append(me)
        while not self._set:
            left_s = None if by_s is None else by_s - kernel.now_s
            if not kernel.park(left_s, "event") and not self._set:
                self._waiting.remove(me)
                return False
        return True


class Thread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool = False,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._target = target
        self._args, self._kwargs = args, kwargs or {}
        self._sleeper: Sleeper | None = None

    def start(self) -> None:
        kernel = running()
        process = kernel.current_thread().process
        self._sleeper = kernel.spawn(process, f"{process.name}:{self.name}", self._run)
        _threads[self._sleeper] = self

    def join(self, timeout: float | None = None) -> None:
        kernel, sleeper = running(), self._sleeper
        if sleeper is None or sleeper.done:
            return
        by_s = None if timeout is None else kernel.now_s + timeout
        sleeper.ended.append(kernel.current_thread())
        while not sleeper.done:
            left_s = None if by_s is None else by_s - kernel.now_s
            if left_s is not None and left_s <= 0:
                return
            kernel.park(left_s, "join")

    def is_alive(self) -> bool:
        return self._sleeper is not None and not self._sleeper.done

    def _run(self) -> None:
        assert self._target is not None
        self._target(*self._args, **self._kwargs)


_threads: dict[Sleeper, Thread] = {}


def current_thread() -> Thread:
    """The running one."""
    sleeper = running().current_thread()
    known = _threads.get(sleeper)
    if known is None:
        known = _threads[sleeper] = Thread(name=sleeper.name)
        known._sleeper = sleeper
    return known


def forget_threads() -> None:
    """The run is over."""
    _threads.clear()


class Pool:
    """Stands in for ``ThreadPoolExecutor``: calls wait in one row for so many threads."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "pool") -> None:
        self._max, self._prefix = max_workers, thread_name_prefix
        self._row: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._changed = Condition()
        self._threads: list[Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[..., object], *args: Any) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._row.append((call, args))
            if not self._idle and len(self._threads) < self._max:
                name = f"{self._prefix}_{len(self._threads)}"
                self._threads.append(Thread(target=self._work, name=name))
                self._threads[-1].start()
            self._changed.notify()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._closed = True
            if cancel_futures:
                self._row.clear()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._row and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._row:
                    return
                call, args = self._row.popleft()
            call(*args)
