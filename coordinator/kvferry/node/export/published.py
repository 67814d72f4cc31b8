"""Prefills that other engines follow: how many of their blocks are offered by now.

A published prefill says only how far it is. Its blocks are offered and pinned like all others,
by chain hash, and so nothing here is believed: who reads asks the export table, twice.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvferry.node.peers.wire import Follow, Followed, Progress, Refused

UNKNOWN = "unknown"
"""No request was published under this name, or not yet."""
WAITING = "waiting"
"""It is known, and no block of it is written yet."""
RUNNING = "running"
LAST = "last"
"""The last tokens of its prompt are being computed."""
COMPLETE = "complete"
"""Every block that the follower wants is offered."""
ENDED = "ended"
"""It was preempted or aborted: no further block comes."""
OTHER = "other"
"""The follower's prompt is another one."""
PAUSED = "paused"
STOPPED = "stopped"
"""The node stops."""

FINAL = frozenset({COMPLETE, ENDED, OTHER, PAUSED, STOPPED})
"""After these nothing more is to be expected."""

PUBLISHED_MAX = 4096
NAME_CHARS_MAX = 256
FOLLOWED_MAX = 1024
"""Prefills in one question."""
WAIT_MS_MAX = 100
ENDED_S = 60.0
"""How long an ended prefill is remembered for followers that come late."""


class _Prefill:
    __slots__ = ("blocks", "ended_s", "hashes", "ready", "state")

    def __init__(self, hashes: Sequence[bytes], blocks: int) -> None:
        self.hashes = hashes
        self.blocks = blocks
        self.ready = 0
        self.state = WAITING
        self.ended_s = 0.0


class Published:
    """The published prefills of one engine core.

    The engine's scheduler thread reports, threads of peer sessions ask and wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._running: dict[str, _Prefill] = {}
        self._ended: OrderedDict[str, _Prefill] = OrderedDict()
        self._paused = False
        self._closed = False

    def __len__(self) -> int:
        """Prefills that may still grow."""
        return len(self._running)

    # --- the engine's side ------------------------------------------------------------------

    def begin(self, name: str, hashes: Sequence[bytes], blocks: int) -> bool:
        """A request with ``blocks`` full prompt blocks arrived; False if it cannot be followed.

        ``hashes`` may grow later on; its first ``blocks`` never change. A name that is in use
        stays with the request that has it.
        """
        if not 0 < len(name) <= NAME_CHARS_MAX or blocks <= 0:
            return False
        with self._changed:
            if name in self._running or len(self._running) >= PUBLISHED_MAX:
                return False
            self._ended.pop(name, None)
            self._running[name] = _Prefill(hashes, blocks)
            self._changed.notify_all()
            return True

    def grown(self, name: str, ready: int, *, last: bool) -> None:
        """``ready`` blocks are offered by now; ``last``: the prompt's end is being computed."""
        with self._changed:
            prefill = self._running.get(name)
            if prefill is None:
                return
            state = LAST if last else RUNNING if ready else WAITING
            if (ready, state) != (prefill.ready, prefill.state):
                prefill.ready, prefill.state = ready, state
                self._changed.notify_all()

    def end(self, name: str, ready: int) -> None:
        """The request left the engine or lost its blocks; ``ready`` blocks were offered."""
        now_s = self._clock()
        with self._changed:
            prefill = self._running.pop(name, None)
            if prefill is None:
                return
            prefill.ready, prefill.state, prefill.ended_s = ready, ENDED, now_s
            self._ended[name] = prefill
            self._forget_ended(now_s)
            self._changed.notify_all()

    def pause(self, paused: bool) -> None:
        """While paused nobody is told to go on."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def close(self) -> None:
        """The node stops; whoever waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- the peers' side --------------------------------------------------------------------

    def follow(self, frame: Follow) -> Progress | Refused:
        """How far the prefills are; waits until one of them is further than the frame says."""
        if len(frame.prefills) > FOLLOWED_MAX:
            return Refused(reason="protocol", detail=f"more than {FOLLOWED_MAX} prefills")
        until_s = self._clock() + min(max(0, frame.wait_ms), WAIT_MS_MAX) / 1000
        known = [(one.ready, one.state) for one in frame.prefills]
        with self._changed:
            while True:
                found = [self._look(one) for one in frame.prefills]
                left_s = until_s - self._clock()
                if found != known or left_s <= 0:
                    return Progress(
                        ready=tuple(ready for ready, _ in found),
                        states=tuple(state for _, state in found),
                    )
                self._changed.wait(left_s)

    def _look(self, one: Followed) -> tuple[int, str]:
        if self._closed:
            return 0, STOPPED
        if self._paused:
            return 0, PAUSED
        prefill = self._running.get(one.name) or self._ended.get(one.name)
        if prefill is None:
            return 0, UNKNOWN
        if not 0 < one.blocks <= prefill.blocks or prefill.hashes[one.blocks - 1] != one.tail:
            return 0, OTHER
        if prefill.ready >= one.blocks:
            return one.blocks, COMPLETE
        return prefill.ready, prefill.state

    def _forget_ended(self, now_s: float) -> None:
        """The oldest stand first."""
        while len(self._ended) > PUBLISHED_MAX or (
            self._ended and next(iter(self._ended.values())).ended_s + ENDED_S <= now_s
        ):
            self._ended.popitem(last=False)
