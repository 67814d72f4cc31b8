"""Staging memory: rows are copied into it out of the engine's cache, and written out of it.

The copy lets the engine reuse its blocks at once. **Each range is owned by one send, from the
moment it is reserved until nothing can read it any more**: until every byte is in place at the
target, or the writer is fenced. Where nothing is free a send does not begin. This is what the one
shared buffer of TileRT's own connector lacks: there, a send that waits for its node is overwritten
by the next one, and its node decodes another prompt's KV.

Nothing is allocated before the first send.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from kvferry.ports.remote_writer import Area
from kvferry_connectors.tilert.arena import Arena
from kvferry_connectors.tilert.errors import SendRefused

log = logging.getLogger("kvferry.tilert")


class Lease:
    """A range of staging memory that one send owns."""

    def __init__(self, memory: Any, start: int, length: int, release: Callable[[int], None]):
        self.memory = memory[start : start + length]
        """A tensor of bytes."""
        self._start = start
        self._release = release
        self._held = True
        self._lock = threading.Lock()

    @property
    def address(self) -> int:
        """Where the range begins."""
        return int(self.memory.data_ptr())

    def release(self) -> None:
        """Nobody reads or writes the range any more. May be called twice."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._release(self._start)


class StagingPool:
    """All staging memory of one rank. Thread-safe."""

    def __init__(self, size: int, device: str) -> None:
        """``size`` in bytes; ``device`` as torch names it."""
        self._size = size
        self._device = device
        self._lock = threading.Lock()
        self._memory: Any = None
        self._arena = Arena(size)

    def reserve(self, length: int) -> Lease:
        """A range for a send. Never waits.

        Raises:
            SendRefused: ``staging_full`` or ``staging_unavailable``.
        """
        if length > self._size:
            raise SendRefused(
                "staging_full",
                f"this prompt needs {length} bytes, and there are {self._size} in all; raise "
                "staging_bytes",
            )
        with self._lock:
            memory = self._allocated()
            start = self._arena.take(length)
            sends = self._arena.owned
        if start is None:
            raise SendRefused(
                "staging_full",
                f"{length} bytes are not free in one piece: {sends} sends hold the {self._size} "
                "bytes there are; raise staging_bytes, or send fewer prompts at a time",
            )
        return Lease(memory, start, length, self._give)

    @property
    def area(self) -> Area:
        """The memory that a writer has to know.

        Raises:
            SendRefused: ``staging_unavailable``.
        """
        with self._lock:
            memory = self._allocated()
        return Area(
            int(memory.data_ptr()),
            self._size,
            "host" if memory.device.type == "cpu" else memory.device.type,
            memory.device.index or 0,
        )

    @property
    def allocated(self) -> bool:
        """Whether there is any memory yet."""
        return self._memory is not None

    @property
    def leases(self) -> int:
        """How many sends own a range."""
        with self._lock:
            return self._arena.owned

    def _give(self, start: int) -> None:
        with self._lock:
            self._arena.give(start)

    def _allocated(self) -> Any:
        if self._memory is None:
            import torch

            # A device copies to the host by itself only where that memory is pinned.
            pinned = self._device == "cpu" and torch.cuda.is_available()
            try:
                self._memory = torch.empty(
                    self._size, dtype=torch.uint8, device=self._device, pin_memory=pinned
                )
            except (RuntimeError, MemoryError, AssertionError) as error:  # The last without CUDA.
                raise SendRefused(
                    "staging_unavailable",
                    f"{self._size} bytes on {self._device}: {error}; lower staging_bytes or "
                    "gpu_memory_utilization, or set staging_device=cpu",
                ) from error
            log.info("tilert: %d bytes of staging memory on %s", self._size, self._device)
        return self._memory
