"""Where packing runs, for whoever has to know when it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

ResultT = TypeVar("ResultT")

Mark = Callable[[], bool]
"""Whether all that a lane had been given by then is done. Never blocks."""


class Lane(Protocol):
    """Runs things one after the other. Used by one thread."""

    def run(self, act: Callable[[], ResultT]) -> ResultT:
        """What ``act`` returns; the device's work that it queued comes after all before it."""
        ...

    def mark(self) -> Mark:
        """A point after everything so far."""
        ...

    def wait_for(self, point: Any) -> None:
        """Nothing that is run from now on begins before the device has passed ``point``."""
        ...

    def drain(self) -> None:
        """Return when everything is done."""
        ...


class HostLane:
    """Implements :class:`Lane` where everything is done when a call returns."""

    def run(self, act: Callable[[], ResultT]) -> ResultT:
        return act()

    def mark(self) -> Mark:
        return lambda: True

    def wait_for(self, point: Any) -> None:
        return

    def drain(self) -> None:
        return


class CudaLane:
    """Implements :class:`Lane` on a stream of its own."""

    def __init__(self, device: int) -> None:
        import torch

        self._torch: Any = torch
        self._device = torch.device("cuda", device)
        with torch.cuda.device(self._device):
            self._stream: Any = torch.cuda.Stream(priority=-1)

    def run(self, act: Callable[[], ResultT]) -> ResultT:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            return act()

    def mark(self) -> Mark:
        event = self._stream.record_event()
        return lambda: bool(event.query())

    def wait_for(self, point: Any) -> None:
        self._stream.wait_event(point)

    def drain(self) -> None:
        self._stream.synchronize()


def make_lane(kind: str, device: int) -> Lane:
    """A lane for packing memory of this kind."""
    return CudaLane(device) if kind == "cuda" else HostLane()
