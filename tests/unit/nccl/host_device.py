"""A stand-in for a GPU with NCCL, which cannot exist where there is none.

It moves the bytes of host pools over Unix sockets and keeps to what NCCL and CUDA do where that
matters to the protocol: work is queued and done in order by a "stream" (a thread), calls settle
later than they return, an abort ends what is queued without its bytes yet lets later work of the
stream run (so garbage is scattered until the stream is drained), and a peer that dies is not
noticed: what waits for it waits on, as a kernel over NVLink spins. With ``loud`` it fails
instead, as over a network.
"""

from __future__ import annotations

import ctypes
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from kvferry.ports.backend import Regions
from kvferry_backends.layout import HostPool
from kvferry_backends.nccl.backend import NcclBackend
from kvferry_backends.nccl.options import NcclOptions
from kvferry_backends.nccl.pipe import SENDER, PipeError

TICK_S = 0.005
SETTLE_CALLS = 2
"""How often the first call over a connection says that it has not settled."""


class HostDevice:
    """Implements :class:`kvferry_backends.nccl.pipe.Device` over host memory."""

    version = "2.0"

    def __init__(
        self,
        regions: Regions,
        options: NcclOptions,
        *,
        loud: bool = False,
        pace_s: float = 0.0,
        scatter_s: float = 0.0,
    ) -> None:
        """``pace_s`` is the time that each chunk takes at the sender, ``scatter_s`` that of each
        scatter at the receiver."""
        self.gpu = secrets.token_hex(4)
        self.pool = HostPool(regions)
        self.slots = options.slots
        self.slot_bytes = options.slot_blocks(regions.block_bytes) * regions.block_bytes
        self.loud = loud
        self.pace_s = pace_s
        self.scatter_s = scatter_s
        self.opened: list[HostPipe] = []
        self.fail_next_open = False

    def unique_id(self) -> bytes:
        return secrets.token_bytes(16)

    def open(self, unique_id: bytes, rank: int) -> HostPipe:
        if self.fail_next_open:
            self.fail_next_open = False
            raise PipeError("out of memory, says the stand-in")
        pipe = HostPipe(self, unique_id, rank)
        self.opened.append(pipe)
        return pipe

    @property
    def live(self) -> int:
        """Communicators that have not been given back."""
        return sum(not pipe.closed for pipe in self.opened)


class HostPipe:
    """Implements :class:`kvferry_backends.nccl.pipe.Pipe`."""

    def __init__(self, device: HostDevice, unique_id: bytes, rank: int) -> None:
        self._device = device
        self._rank = rank
        self._name = b"\0kvferry-test-" + unique_id.hex().encode()
        self._ring = [bytearray(b"\xee" * device.slot_bytes) for _ in range(device.slots)]
        self._stream: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._put = self._done = 0
        self._unsettled = SETTLE_CALLS
        self._socket: socket.socket | None = None
        self._aborted = threading.Event()
        self._error = ""
        self._blocks: tuple[int, ...] = ()
        self.closed = False
        self._queue(self._connect)
        self._thread = threading.Thread(target=self._run, name="stand-in stream")
        self._thread.start()

    def settled(self) -> bool:
        if self._error:
            raise PipeError(self._error)
        if self._socket is None:
            return False
        self._unsettled -= 1
        return self._unsettled < 0

    def begin(self, blocks: Sequence[int]) -> None:
        self._blocks = tuple(blocks)

    def send(self, start: int, stop: int) -> None:
        self._unsettled = SETTLE_CALLS if self._put == 1 else 0
        self._queue(partial(self._send, self._put % len(self._ring), self._blocks[start:stop]))

    def receive(self, start: int, stop: int) -> None:
        self._unsettled = SETTLE_CALLS if self._put == 1 else 0
        self._queue(partial(self._receive, self._put % len(self._ring), self._blocks[start:stop]))

    def queued(self) -> int:
        return self._put - self._done

    def abort(self) -> None:
        self._aborted.set()

    def drained(self) -> bool:
        assert self._aborted.is_set()
        return self._put == self._done

    def close(self) -> None:
        assert self.drained()
        self._stream.put(None)
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._socket is not None:
            self._socket.close()
        self.closed = True

    def tear(self) -> None:
        """Break the connection."""
        self._connected.shutdown(socket.SHUT_RDWR)

    def _queue(self, work: Callable[[], None]) -> None:
        self._put += 1
        self._stream.put(work)

    def _run(self) -> None:
        while (work := self._stream.get()) is not None:
            work()
            self._done += 1

    def _connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(TICK_S)
        if self._rank == SENDER:
            made.bind(self._name)
            made.listen(1)
        while not self._aborted.is_set():
            try:
                if self._rank == SENDER:
                    accepted, _ = made.accept()
                    made.close()
                    made = accepted
                else:
                    made.connect(self._name)
            except (TimeoutError, ConnectionRefusedError, BlockingIOError):
                self._aborted.wait(TICK_S)
                continue
            made.settimeout(TICK_S)
            self._socket = made
            return
        made.close()

    def _send(self, slot: int, blocks: tuple[int, ...]) -> None:
        data = b"".join(self._pieces(blocks))
        self._ring[slot][: len(data)] = data
        self._aborted.wait(self._device.pace_s)
        view = memoryview(self._ring[slot])[: len(data)]
        self._move(view, lambda left: self._connected.send(left))

    def _receive(self, slot: int, blocks: tuple[int, ...]) -> None:
        size = len(blocks) * self._device.pool.block_bytes
        view = memoryview(self._ring[slot])[:size]
        self._move(view, lambda left: self._connected.recv_into(left))
        time.sleep(self._device.scatter_s)
        for piece in self._pieces(blocks):
            piece[:] = view[: len(piece)]
            view = view[len(piece) :]

    def _pieces(self, blocks: tuple[int, ...]) -> list[memoryview]:
        """The memory of blocks, in stream order."""
        extents = zip(*self._device.pool.extents(blocks), strict=True)
        return [
            memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
            for address, length in extents
        ]

    @property
    def _connected(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _move(self, view: memoryview, call: Callable[[memoryview], int]) -> None:
        while view and not self._aborted.is_set() and self._socket is not None:
            try:
                moved = call(view)
            except TimeoutError:
                continue
            except OSError:
                moved = 0
            if not moved:
                if self._device.loud:
                    self._error = "unhandled system error, says the stand-in"
                # Whatever had been queued behind it gets no bytes either.
                self._aborted.wait()
                return
            view = view[moved:]


class HostNcclBackend(NcclBackend):
    """The backend over the stand-in."""

    capabilities = msgspec.structs.replace(NcclBackend.capabilities, memory=frozenset({"host"}))

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        super().__init__(options, HostDevice)


def until(condition: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Wait for something that happens soon."""
    give_up = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.002)
