"""A stand-in for CUDA's streams and events, which cannot exist without a GPU.

Streams run their work in order; which stream goes next is drawn by lot, so that whatever the
events leave open does happen in both ways. Packing is real, on host memory. A send and the
matching receive run together, as NCCL's kernels do; an abort lets them pass without their bytes.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from kvferry.ports.backend import Regions
from kvferry_backends.packing.host import HostPacker


class Event:
    """Happens when its stream comes to it."""

    def __init__(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened


class Stream:
    """Work in order; an item runs when its condition holds."""

    def __init__(self) -> None:
        self.work: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()

    @property
    def cuda_stream(self) -> Stream:
        return self

    def wait_event(self, event: Event) -> None:
        self.work.append((event.query, lambda: None))

    def record_event(self) -> Event:
        event = Event()
        self.work.append((lambda: True, lambda: setattr(event, "happened", True)))
        return event

    def query(self) -> bool:
        return not self.work


class Cuda:
    """All streams of two GPUs."""

    def __init__(self, seed: int) -> None:
        self._lots = random.Random(seed)
        self._streams: list[Stream] = []
        self.current: Stream | None = None
        self.sends: deque[bytes] = deque()
        """Sent and not yet received; a send waits until its receive is there."""

    def torch(self) -> SimpleNamespace:
        """What :mod:`cuda_device` uses of torch."""
        return SimpleNamespace(
            cuda=SimpleNamespace(
                Stream=self._stream,
                stream=self._on,
                device=lambda index: contextlib.nullcontext(),
                get_device_properties=lambda index: SimpleNamespace(uuid=f"gpu-{index}"),
            )
        )

    def step(self, times: int) -> None:
        """Let the device do so much, if it can."""
        for _ in range(times):
            ready = [s for s in self._streams if s.work and s.work[0][0]()]
            if not ready:
                return
            self._lots.choice(ready).work.popleft()[1]()

    def _stream(self, priority: int) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class QueuedPacker:
    """The host packer, queued on the current stream."""

    def __init__(self, cuda: Cuda, regions: Regions) -> None:
        self._cuda = cuda
        self._packer = HostPacker(regions)
        self.listed = self._packer.listed

    def pack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        self._queue(lambda: self._packer.pack(listed, start, stop, slot))

    def unpack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        self._queue(lambda: self._packer.unpack(listed, start, stop, slot))

    def _queue(self, work: Callable[[], None]) -> None:
        assert self._cuda.current is not None, "packing needs a stream of its own"
        self._cuda.current.work.append((lambda: True, work))


class Rank:
    """One end of a communicator, with the calls of :class:`kvferry_backends.nccl.library`."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._unsettled = 0
        self._aborted = False

    def ready(self) -> bool:
        self._unsettled -= 1
        return self._unsettled < 0

    def send(self, part: Any, stream: Stream) -> None:
        assert self._unsettled < 0, "the last call has not settled"
        self._unsettled = 1
        stream.work.append(
            (
                lambda: self._aborted or not self._cuda.sends,
                lambda: None if self._aborted else self._cuda.sends.append(part.tobytes()),
            )
        )

    def receive(self, part: Any, stream: Stream) -> None:
        assert self._unsettled < 0, "the last call has not settled"
        self._unsettled = 1

        def arrive() -> None:
            if not self._aborted:
                data = self._cuda.sends.popleft()
                assert len(data) == len(part)
                part[:] = memoryview(data)

        stream.work.append((lambda: self._aborted or bool(self._cuda.sends), arrive))

    def abort(self) -> None:
        self._aborted = True
