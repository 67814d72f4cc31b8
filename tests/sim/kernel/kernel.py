"""Virtual time, and threads of which exactly one runs at a time, chosen by a seed.

A simulated thread is a greenlet. It runs until it waits for something, and nothing else happens
meanwhile; so a run depends on its seed alone. Time passes only while every thread waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH_S = 1_800_000_000.0
"""Wall clock at virtual time zero."""
EVENTS_MAX = 400_000
"""A run with more of them does not come to rest."""
JITTER_S = 0.0002
"""How late a thread may get the processor after it was woken, at most."""


class Stuck(Exception):
    """The simulation cannot go on: nothing will ever happen, or far too much does."""


class Process:
    """What dies, freezes and misjudges time as one.

    Attributes:
        wall_shift_s: how far its wall clock is off.
        frozen_until_s: virtual time before which none of its threads runs.
        at_kill: called once when it is killed, by its parts in the outer world.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.alive = True
        self.wall_shift_s = 0.0
        self.frozen_until_s = 0.0
        self.rng = random.Random(f"{kernel.seed}/{name}")
        self.at_kill: list[Callable[[], None]] = []

    def kill(self) -> None:
        """As signal 9 does: no thread of it ever runs again."""
        if not self.alive:
            return
        self.alive = False
        self.kernel.note("kill", self.name)
        for act in self.at_kill:
            act()

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP does, and SIGCONT after so long."""
        self.kernel.note("freeze", self.name, f"{seconds:.3f}")
        self.frozen_until_s = max(self.frozen_until_s, self.kernel.now_s + seconds)


class Sleeper:
    """One simulated thread."""

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.done = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs on it at this moment."""
        self.in_hook = ""
        """Name of the engine hook that it is in; see :mod:`tests.sim.checks.engine`."""
        self.ticket = 0
        self.waiting = False
        self.woken = False
        self.ended: list[Sleeper] = []
        """Who waits for its end."""
        self._run = run
        self.greenlet = greenlet(self._main, parent=process.kernel.hub)

    def _main(self) -> None:
        kernel = self.process.kernel
        try:
            self._run()
        except Exception as error:
            if not kernel.over:
                kernel.crashes.append((self.name, error))
        finally:
            self.done = True
            if not kernel.over:
                for one in self.ended:
                    kernel.wake(one)


class Kernel:
    """The scheduler of one run."""

    def __init__(self, seed: int, *, preempt: float = 0.0, keep_trace: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/kernel")
        self.now_s = 0.0
        self.preempt = preempt
        """How probable it is that a thread loses the processor as it takes a lock."""
        self.current: Sleeper | None = None
        self.over = False
        self.events = 0
        self.lines: list[str] | None = [] if keep_trace else None
        self.serials = itertools.count(1)
        self.crashes: list[tuple[str, Exception]] = []
        """Threads that ended with an exception."""
        self.network: object = None
        self.on_wait: Callable[[Sleeper, str], None] | None = None
        self._digest = 0
        self._heap: list[tuple[float, int, Any, int]] = []
        self._pushed = itertools.count()
        self.hub: greenlet = getcurrent()
        self._threads: list[Sleeper] = []

    # --- what happens -----------------------------------------------------------------------

    def note(self, kind: str, *what: object) -> None:
        """Put a line into the trace, of which the digest is kept in any case."""
        line = f"{self.now_s:.6f} {kind} {' '.join(map(str, what))}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """Of everything noted, and of the order in which threads ran."""
        return f"{self._digest:08x}-{self.events}"

    # --- threads ----------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, run: Callable[[], None]) -> Sleeper:
        """A new thread, which gets the processor soon."""
        thread = Sleeper(process, name, run)
        self._threads.append(thread)
        self._schedule(thread, self.now_s + self.rng.random() * JITTER_S)
        return thread

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Call ``act``, which must not wait, at a virtual time."""
        heapq.heappush(self._heap, (max(when_s, self.now_s), next(self._pushed), act, 0))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act``, which must not wait, in so long."""
        self.at(self.now_s + seconds, act)

    def park(self, timeout_s: float | None, why: str) -> bool:
        """Let others run until somebody wakes the running thread; False after the timeout."""
        thread = self.current
        if self.over:
            raise GreenletExit()
        if thread is None:
            raise Stuck(f"code outside every simulated thread waits for {why}")
        if self.on_wait is not None and thread.in_hook:
            self.on_wait(thread, why)
        thread.waiting, thread.woken = True, False
        if timeout_s is None:
            thread.ticket += 1
        else:
            self._schedule(thread, self.now_s + max(0.0, timeout_s))
        self.hub.switch()
        thread.waiting = False
        if self.over:
            raise GreenletExit()
        return thread.woken

    def wake(self, thread: Sleeper) -> None:
        """Let a thread that waits go on soon; nothing for one that does not."""
        if thread.waiting and not thread.woken and not thread.done:
            thread.woken = True
            self._schedule(thread, self.now_s + self.rng.random() * JITTER_S)

    def sleep(self, seconds: float) -> None:
        """The running thread does nothing for so long."""
        self.park(seconds, "time")

    def may_lose_processor(self) -> None:
        """A point where another thread may come in between."""
        if self.preempt and self.current is not None and self.rng.random() < self.preempt:
            self.current.waiting = True
            self.current.woken = True
            self._schedule(self.current, self.now_s + self.rng.random() * JITTER_S)
            self.hub.switch()
            self.current_thread().waiting = False
            if self.over:
                raise GreenletExit()

    def current_thread(self) -> Sleeper:
        assert self.current is not None
        return self.current

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until the condition holds, or some thread ended with an exception.

        Raises:
            Stuck: it never will.
        """
        while not until() and not self.crashes:
            if not self._heap:
                raise Stuck("nothing is left that could happen")
            when_s, _, what, ticket = heapq.heappop(self._heap)
            if isinstance(what, Sleeper):
                if ticket == what.ticket:
                    self._resume(what, when_s)
                continue
            self.now_s = max(self.now_s, when_s)
            what()
        self.current = None

    def close(self) -> None:
        """Unwind every thread that still waits; nothing of it counts any more."""
        self.over = True
        for thread in self._threads:
            if not thread.done and thread.greenlet:
                asyncio._set_running_loop(None)
                self.current = thread
                thread.greenlet.throw(GreenletExit())
        self.current = None
        asyncio._set_running_loop(None)

    def _schedule(self, thread: Sleeper, when_s: float) -> None:
        thread.ticket += 1
        heapq.heappush(self._heap, (when_s, next(self._pushed), thread, thread.ticket))

    def _resume(self, thread: Sleeper, when_s: float) -> None:
        process = thread.process
        if not process.alive or thread.done:
            return
        if process.frozen_until_s > when_s:
            self._schedule(thread, process.frozen_until_s + self.rng.random() * JITTER_S)
            return
        self.now_s = max(self.now_s, when_s)
        self.events += 1
        self._digest = zlib.crc32(thread.name.encode(), self._digest)
        if self.events > EVENTS_MAX:
            raise Stuck(f"{EVENTS_MAX} events, and no end")
        self.current = thread
        asyncio._set_running_loop(thread.loop)
        try:
            thread.greenlet.switch()
        finally:
            self.current = None
            asyncio._set_running_loop(None)


_running: list[Kernel] = []


def running() -> Kernel:
    """The kernel of the run under way."""
    if not _running:
        raise Stuck("no simulation runs")
    return _running[-1]


def begin(kernel: Kernel) -> None:
    """Make this the kernel that simulated clocks, locks and sockets belong to."""
    _running.append(kernel)


def end() -> None:
    """No simulation runs any more."""
    _running.pop()
