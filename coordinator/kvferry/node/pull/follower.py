"""Keeps up with prefills at other nodes, so that their blocks can be read as they are written.

One thread a source asks for all prefills that are followed there, in one question that the
source answers when there is news. Whoever follows only looks, or waits for a condition.
"""

from __future__ import annotations

import logging
import threading
import time

from kvferry.errors import PeerRefused, PeerUnreachable
from kvferry.node.export.published import FINAL, FOLLOWED_MAX, UNKNOWN
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.wire import Follow, Followed, Progress

log = logging.getLogger("kvferry.follower")

WAIT_MS = 10
"""How long a question stays at the source without news; a new follower may wait as long for its
first answer."""
CALL_S = 2.0
AGAIN_MS = 20
"""Between two questions of which the first was not heard."""
IDLE_S = 5.0
"""A thread without prefills ends after this time."""
SOURCES_MAX = 256
JOIN_S = 10.0

UNREACHABLE = "unreachable"
"""The source was silent for too long."""
GONE = "gone"
"""Nobody listens at the source's address."""
REFUSED = "refused"
CLOSED = "closed"
"""We stop."""


class Following:
    """A prefill at another node, as far as it was heard of. Any thread may read it.

    Attributes:
        ready: blocks, counted from the prompt's first, that the source offers by now.
        state: as in :mod:`kvferry.node.export.published`, or how contact was lost; empty before
            the first answer. It is written after ``ready``.
        detail: what went wrong, for people.
        unknown_since_s: since when the source has said that it knows no such prefill;
            monotonic, 0 when it does not say so.
    """

    __slots__ = (
        "_changed",
        "address",
        "blocks",
        "detail",
        "incarnation",
        "name",
        "ready",
        "state",
        "tail",
        "unknown_since_s",
    )

    def __init__(
        self,
        changed: threading.Condition,
        address: str,
        incarnation: str,
        name: str,
        blocks: int,
        tail: bytes,
    ) -> None:
        self._changed = changed
        self.address, self.incarnation = address, incarnation
        self.name, self.blocks, self.tail = name, blocks, tail
        self.ready = 0
        self.state = ""
        self.detail = ""
        self.unknown_since_s = 0.0

    @property
    def over(self) -> bool:
        """Nothing more is to be expected."""
        return self.state in FINAL or self.lost

    @property
    def lost(self) -> bool:
        """The source does not answer for it any more."""
        return self.state in (UNREACHABLE, GONE, REFUSED, CLOSED)

    def wait_beyond(self, blocks: int, timeout_s: float) -> bool:
        """Wait until more than ``blocks`` are ready or it is over; False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ready > blocks or self.over, timeout_s)


class _Source:
    """What is followed at one process life of one address."""

    def __init__(self) -> None:
        self.followed: list[Following] = []
        self.heard_s = time.monotonic()
        self.thread: threading.Thread | None = None


class Follower:
    """All prefills that this process follows.

    ``client`` is for nothing else, for its calls wait at the source. A source that says nothing
    for ``silent_s`` is given up.
    """

    def __init__(self, client: PeerClient, *, silent_s: float) -> None:
        self._client = client
        self._silent_s = silent_s
        self._changed = threading.Condition()
        self._sources: dict[tuple[str, str], _Source] = {}
        self._closed = False

    def follow(
        self, address: str, incarnation: str, name: str, blocks: int, tail: bytes
    ) -> Following:
        """Follow a prefill until :meth:`leave`. Returns at once.

        ``blocks`` and ``tail`` say what is wanted: so many blocks of the prompt, of which the
        last has this full chain hash.
        """
        one = Following(self._changed, address, incarnation, name, blocks, tail)
        with self._changed:
            source = self._sources.get((address, incarnation))
            full = source is None and len(self._sources) >= SOURCES_MAX
            if self._closed or full or (source and len(source.followed) >= FOLLOWED_MAX):
                one.detail = "this node is closed, or follows as many prefills as it can"
                one.state = CLOSED
                return one
            if source is None:
                source = self._sources[address, incarnation] = _Source()
                source.thread = threading.Thread(
                    target=self._run,
                    args=(address, incarnation, source),
                    name=f"kvferry-follow-{address}",
                    daemon=True,
                )
                source.thread.start()
            if not source.followed:
                source.heard_s = time.monotonic()
            source.followed.append(one)
            self._changed.notify_all()
        return one

    def leave(self, one: Following) -> None:
        """Follow it no longer; a second time does nothing."""
        with self._changed:
            source = self._sources.get((one.address, one.incarnation))
            if source is not None and one in source.followed:
                source.followed.remove(one)

    def close(self) -> None:
        """Give up everything and join every thread. The client is closed by its owner, first."""
        with self._changed:
            self._closed = True
            threads = [s.thread for s in self._sources.values() if s.thread is not None]
            for source in self._sources.values():
                self._give_up(source, CLOSED, "this node stops")
            self._changed.notify_all()
        for thread in threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                log.error("%s did not end within %s s", thread.name, JOIN_S)

    # --- a source's thread ------------------------------------------------------------------

    def _run(self, address: str, incarnation: str, source: _Source) -> None:
        while (asked := self._next((address, incarnation), source)) is not None:
            try:
                answer = self._ask(address, incarnation, asked)
            except PeerRefused as refused:
                self._lost(source, REFUSED, str(refused))
            except PeerUnreachable as error:
                self._unheard(source, error)
            else:
                self._heard(source, asked, answer)

    def _next(self, key: tuple[str, str], source: _Source) -> list[Following] | None:
        """What to ask for; None when the thread is to end."""
        with self._changed:
            if not source.followed and not self._closed:
                self._changed.wait_for(lambda: source.followed or self._closed, IDLE_S)
            if not source.followed or self._closed:
                self._sources.pop(key, None)
                return None
            return list(source.followed)

    def _ask(self, address: str, incarnation: str, asked: list[Following]) -> Progress:
        frame = Follow(
            prefills=tuple(
                Followed(
                    name=one.name,
                    blocks=one.blocks,
                    tail=one.tail,
                    ready=one.ready,
                    state=one.state,
                )
                for one in asked
            ),
            wait_ms=WAIT_MS,
        )
        answer = self._client.call(address, frame, timeout_s=CALL_S, incarnation=incarnation)
        if not isinstance(answer, Progress) or len(answer.ready) != len(asked):
            raise PeerRefused("protocol", f"{type(answer).__name__} answers follow")
        return answer

    def _heard(self, source: _Source, asked: list[Following], answer: Progress) -> None:
        now_s = time.monotonic()
        with self._changed:
            source.heard_s = now_s
            for one, ready, state in zip(asked, answer.ready, answer.states, strict=True):
                if state != UNKNOWN:
                    one.unknown_since_s = 0.0
                elif not one.unknown_since_s:
                    one.unknown_since_s = now_s
                # Never backwards: what was offered may be reused, and then the pin says so.
                one.ready = max(one.ready, min(ready, one.blocks))
                one.state = state
                if one.over and one in source.followed:
                    source.followed.remove(one)
            self._changed.notify_all()

    def _unheard(self, source: _Source, error: PeerUnreachable) -> None:
        if isinstance(error.__cause__, ConnectionRefusedError):
            self._lost(source, GONE, str(error))
        elif time.monotonic() - source.heard_s >= self._silent_s:
            self._lost(source, UNREACHABLE, str(error))
        else:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, AGAIN_MS / 1000)

    def _lost(self, source: _Source, state: str, why: str) -> None:
        with self._changed:
            self._give_up(source, state, why)
            self._changed.notify_all()

    def _give_up(self, source: _Source, state: str, why: str) -> None:
        for one in source.followed:
            one.detail = why
            one.state = state
        source.followed.clear()
