"""Other processes' memory, mapped into ours once per peer, and unmapped when the peer has ended.

A dead process's device memory stays allocated until its last reader unmaps it, and could keep its
successor from starting. So three things end a mapping: the connector hears that the source is gone
(:meth:`Mappings.drop`), the next use finds its process ended, or the reaper does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kvferry.errors import BackendError
from kvferry_backends.identity import Identity
from kvferry_backends.peer.wire import PeerDescription

REAP_EVERY_S = 0.25
"""How often the reaper looks whether mapped processes live."""
UNSEEN_IDLE_S = 5.0
"""A peer in another pid namespace cannot be watched: its mapping is given up after so long
without use. Making it again costs a few milliseconds; keeping it can keep a restarted peer, which
takes longer than this to start, from its memory."""
JOIN_S = 10.0

log = logging.getLogger("kvferry.backends.peer")


class Opened(Protocol):
    """A peer's memory in this process."""

    def close(self) -> None: ...


OpenedT = TypeVar("OpenedT", bound=Opened)


class Mapping(Generic[OpenedT]):
    """One peer's memory. Readers keep it mapped."""

    def __init__(self, peer: PeerDescription, opened: OpenedT) -> None:
        self.instance = peer.instance
        self.process = peer.process
        self.opened = opened
        self.readers = 0
        self.used_at_s = time.monotonic()
        self.gone = ""
        """Why nobody may begin to read from it any more."""


class Mappings(Generic[OpenedT]):
    """All mappings of one backend. Thread-safe.

    Args:
        open_peer: maps a peer, or raises BackendError.
        lives: whether a process does; None where that cannot be seen.
    """

    def __init__(
        self,
        open_peer: Callable[[PeerDescription], OpenedT],
        lives: Callable[[Identity], bool | None],
        *,
        unseen_idle_s: float = UNSEEN_IDLE_S,
    ) -> None:
        self._open_peer = open_peer
        self._lives = lives
        self._unseen_idle_s = unseen_idle_s
        self._changed = threading.Condition()
        self._mapped: dict[str, Mapping[OpenedT]] = {}
        self._reaper: threading.Thread | None = None
        self._closed = False

    def take(self, peer: PeerDescription) -> Mapping[OpenedT]:
        """The peer's mapping, made now if it is new; to be given back after use.

        Raises:
            BackendError: the peer's process has ended, or its memory cannot be mapped.
        """
        if self._lives(peer.process) is False:
            why = _ended(peer.process)
            self.drop(peer.instance, why)
            raise BackendError(f"nothing to read: {why}")
        with self._changed:
            if self._closed:
                raise BackendError("backend peer is closed")
            mapping = self._mapped.get(peer.instance)
            if mapping is None:
                mapping = Mapping(peer, self._open_peer(peer))
                self._mapped[peer.instance] = mapping
                self._watch()
            mapping.readers += 1
            return mapping

    def give_back(self, mapping: Mapping[OpenedT]) -> str:
        """A reader is done; the last one of a mapping that was dropped unmaps it.

        Returns:
            Why the peer was lost while it was read, or nothing.
        """
        if not mapping.gone:
            self._drop_if_dead(mapping)
        with self._changed:
            mapping.readers -= 1
            mapping.used_at_s = time.monotonic()
            unmap = bool(mapping.gone) and not mapping.readers
        if unmap:
            _unmap(mapping)
        return mapping.gone

    def drop(self, instance: str, why: str) -> None:
        """Unmap a peer that has ended, now or when its last reader is done."""
        with self._changed:
            mapping = self._mapped.pop(instance, None)
            if mapping is None:
                return
            mapping.gone = why
            unmap = not mapping.readers
        if unmap:
            _unmap(mapping)

    def close(self) -> None:
        """Unmap everything, and end the reaper. Readers must be done, or theirs stay mapped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            reaper = self._reaper
        if reaper is not None:
            reaper.join(JOIN_S)
        for instance in list(self._mapped):
            self.drop(instance, "closed by this node")

    def _watch(self) -> None:
        """Under the lock."""
        if self._reaper is None:
            self._reaper = threading.Thread(
                target=self._reap, name="kvferry-peer-unmap", daemon=True
            )
            self._reaper.start()
        self._changed.notify_all()

    def _reap(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._mapped)
                self._changed.wait_for(lambda: self._closed, REAP_EVERY_S)
                if self._closed:
                    return
                mapped = list(self._mapped.values())
            for mapping in mapped:
                self._drop_if_dead(mapping)
                self._drop_if_unseen(mapping)

    def _drop_if_dead(self, mapping: Mapping[OpenedT]) -> None:
        if self._lives(mapping.process) is False:
            self.drop(mapping.instance, _ended(mapping.process))

    def _drop_if_unseen(self, mapping: Mapping[OpenedT]) -> None:
        idle_s = time.monotonic() - mapping.used_at_s
        idle = not mapping.readers and idle_s > self._unseen_idle_s
        if idle and self._lives(mapping.process) is None:
            why = f"not used for {idle_s:.0f} s, and whether it lives cannot be seen"
            self.drop(mapping.instance, why)


def _ended(process: Identity) -> str:
    return f"process {process.pid} has ended"


def _unmap(mapping: Mapping[OpenedT]) -> None:
    try:
        mapping.opened.close()
    except BackendError as error:
        log.warning(
            "memory of process %d cannot be unmapped (%s); it stays allocated until this process "
            "ends",
            mapping.process.pid,
            error,
        )
    else:
        log.info("memory of process %d is unmapped: %s", mapping.process.pid, mapping.gone)
