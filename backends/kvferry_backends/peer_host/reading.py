"""A read under way: threads that copy call by call, and stop between two of them."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterator

from kvferry_backends.identity import Identity, lives
from kvferry_backends.peer_host.plan import Call
from kvferry_backends.peer_host.system import MemoryReadError, pieces, read_memory
from kvferry_backends.peer_host.wire import NONCE_BYTES, PeerDescription
from kvferry_backends.posted import PartedRead

_log = logging.getLogger("kvferry.backends.peer_host")


class HostRead(PartedRead):
    """A read of one peer's memory. Each part is a thread that takes the next call of a plan.

    Every call also reads the nonce, after its blocks: what it brought is of the right process,
    which still served when the call ended.
    """

    def __init__(
        self,
        transfer: str,
        peer: PeerDescription,
        ours: Identity,
        planned: Iterator[Call],
        *,
        parts: int,
        deadline: float,
        on_end: Callable[[HostRead], None],
    ) -> None:
        """``deadline`` is a point of ``time.monotonic()``."""
        super().__init__(transfer, parts, on_end, source=peer.instance)
        self._peer = peer
        self._ours = ours
        self._planned = planned
        self._deadline = deadline

    def work(self) -> None:
        """Copy until nothing is left and tell how it went, exactly once. Never raises."""
        try:
            moved = self._copy()
        except MemoryReadError as error:
            self.part_failed(error.error, str(error))
        except Exception as error:
            _log.exception("transfer %s failed in a way not foreseen", self.transfer)
            self.part_failed("error", repr(error))
        else:
            self.part_done(moved)

    def _copy(self) -> int:
        if lives(self._peer.process, self._ours) is False:
            raise MemoryReadError("unreachable", f"process {self._peer.process.pid} has ended")
        nonce = ctypes.create_string_buffer(NONCE_BYTES)
        self._call(Call([], [], []), nonce)  # Nothing of ours is written before this one is right.
        moved = 0
        while (call := self._next()) is not None:
            self._call(call, nonce)
            moved += call.size
        return moved

    def _next(self) -> Call | None:
        """The next call of the plan, made while other threads copy; None when all are taken."""
        with self._lock:
            if self.over:
                raise MemoryReadError("aborted", "the read ended before all was copied")
            if time.monotonic() >= self._deadline:
                raise MemoryReadError("deadline", "the deadline passed before all was copied")
            return next(self._planned, None)

    def _call(self, call: Call, nonce: ctypes.Array[ctypes.c_char]) -> None:
        peer = self._peer
        lengths = [*call.lengths, NONCE_BYTES]
        nonce.raw = bytes(NONCE_BYTES)
        read_memory(
            peer.process.pid,
            pieces([*call.local, ctypes.addressof(nonce)], lengths),
            pieces([*call.remote, peer.nonce_address], lengths),
            sum(lengths),
        )
        if nonce.raw != peer.nonce:
            raise MemoryReadError(
                "unreachable", f"process {peer.process.pid} does not serve these blocks any more"
            )
