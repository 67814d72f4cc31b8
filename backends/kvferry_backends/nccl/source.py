"""The source's side: gathers and sends what a grant permits."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.errors import BackendError
from kvferry_backends.control.server import Asked
from kvferry_backends.nccl.local import Local
from kvferry_backends.nccl.messages import PROTOCOL, Go, Want, decode, encode
from kvferry_backends.nccl.pipe import SENDER, Pipe
from kvferry_backends.nccl.pump import Check, drive, fence, settle
from kvferry_backends.nccl.seats import Seat, Seats
from kvferry_backends.tcp.serving import Refusal
from kvferry_backends.tcp.stream import StreamError

IDLE_S = 300.0
"""A communicator without a transfer for so long is given up when the next transfer comes."""
JOIN_S = 10.0


@dataclass
class Link:
    """A communicator to one target. Used by one thread, the one that took it from the table."""

    token: str
    target: str
    seat: Seat
    unique_id: bytes
    number: int = 0
    """Transfers that went over it."""
    pipe: Pipe | None = None

    def end(self) -> None:
        """Abort the communicator; its seat stays taken if it cannot be got rid of."""
        if self.pipe is None or fence(self.pipe):
            self.seat.release()


class Source:
    """Serves the conversations of a control server. Thread-safe."""

    def __init__(self, local: Local, seats: Seats) -> None:
        self._local = local
        self._seats = seats
        self._lock = threading.Lock()
        self._resting: dict[str, Link] = {}
        """By token. A link that is not here belongs to the thread that uses it."""
        self._enders: list[threading.Thread] = []
        self._closed = False

    def serve(self, asked: Asked) -> None:
        """Send what was asked for.

        The permission is asked for again before each chunk is queued, so that a pin that ends in
        mid-read ends the sending.

        Raises:
            Refusal: the target wants what cannot be.
            StreamError: the target is gone, or its deadline has passed.
            BackendError: NCCL or CUDA failed.
        """
        want = decode(asked.body, Want)
        self._refuse_misfits(want)

        def check() -> None:
            if time.monotonic() >= asked.talk.deadline:
                raise StreamError("deadline", "the transfer's deadline passed")
            if self._closed or not asked.talk.stands():
                raise StreamError("unreachable", "the target has left")

        link = self._link_for(want, check)
        try:
            self._send(link, asked, want.chunk_blocks, check)
        except BaseException:
            link.end()
            raise
        link.number += 1
        self._rest(link)

    def forget(self, target: str) -> None:
        """The process behind this instance has ended. Returns at once.

        Transfers under way to it notice by themselves, for its connections close.
        """
        gone = self._take(lambda link: link.target == target)
        if not gone:
            return
        ender = threading.Thread(target=_end, args=(gone,), name="kvferry-nccl-forget", daemon=True)
        with self._lock:
            self._enders = [thread for thread in self._enders if thread.is_alive()]
            self._enders.append(ender)
            ender.start()

    def close(self) -> None:
        """End all links. Conversations must have ended, or end soon."""
        with self._lock:
            self._closed = True
            enders = list(self._enders)
        _end(self._take(lambda link: True))
        for ender in enders:
            ender.join(JOIN_S)

    def _refuse_misfits(self, want: Want) -> None:
        local = self._local
        if want.protocol != PROTOCOL:
            raise Refusal(f"nccl protocol {want.protocol}, not {PROTOCOL}")
        if want.widths != local.widths:
            raise Refusal("block layouts differ")
        if not 1 <= want.chunk_blocks <= local.slot_blocks:
            raise Refusal(f"chunks of {want.chunk_blocks} blocks, not 1 to {local.slot_blocks}")

    def _send(self, link: Link, asked: Asked, chunk_blocks: int, check: Check) -> None:
        go = Go(
            link=link.token,
            number=link.number,
            unique_id=link.unique_id if link.pipe is None else b"",
        )
        asked.talk.send(encode(go))
        if link.pipe is None:
            link.pipe = self._local.device.open(link.unique_id, SENDER)
            settle(link.pipe, check)
        pipe = link.pipe

        def put(start: int, stop: int) -> None:
            if start:
                asked.permit()
            pipe.send(start, stop)

        pipe.begin(asked.blocks)
        drive(pipe, self._local.ranges(len(asked.blocks), chunk_blocks), put, check)

    def _link_for(self, want: Want, check: Check) -> Link:
        """The link that both ends agree on, or a new one."""
        too_old = time.monotonic() - IDLE_S
        _end(self._take(lambda link: link.seat.rests_since < too_old))
        with self._lock:
            known = self._resting.pop(want.link, None)
        if known is not None:
            if known.seat.wake() and known.number == want.number:
                return known
            known.end()
        token = secrets.token_hex(16)
        seat = self._seats.take(lambda: self._leave(token), check)
        try:
            return Link(token, want.target, seat, self._local.device.unique_id())
        except BackendError:
            seat.release()
            raise

    def _rest(self, link: Link) -> None:
        with self._lock:
            if not self._closed:
                link.seat.rest()
                self._resting[link.token] = link
                return
        link.end()

    def _leave(self, token: str) -> None:
        """Another transfer needs this link's seat. A link in use is not asked to leave."""
        _end(self._take(lambda link: link.token == token))

    def _take(self, wanted: Callable[[Link], bool]) -> list[Link]:
        """The resting links that are wanted; from now on they are the caller's to end."""
        with self._lock:
            taken = [link for link in self._resting.values() if wanted(link)]
            for link in taken:
                del self._resting[link.token]
            return taken


def _end(links: list[Link]) -> None:
    for link in links:
        link.end()
