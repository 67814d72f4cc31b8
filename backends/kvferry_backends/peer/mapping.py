"""Other processes' device memory, mapped into ours: once per peer, and unmapped when it is gone."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from kvferry.errors import BackendError
from kvferry_backends.peer.gather import span_table
from kvferry_backends.peer.wire import PeerDescription

IDLE_S = 60.0
"""A mapping that nobody used for so long is given up: a dead source's memory stays allocated
until its last reader unmaps it, and could keep its successor from starting."""


class Mapping:
    """One peer's blocks as addresses that kernels of this process can read."""

    def __init__(self, peer: PeerDescription, device: torch.device) -> None:
        self._storages: list[Any] = []
        bases = []
        for allocation in peer.allocations:
            try:
                # The handle must be opened with the *target's* device current, else kernels there
                # refuse the pointer.
                with torch.cuda.device(device):
                    storage = torch.UntypedStorage._new_shared_cuda(device.index, *allocation.share)
            except RuntimeError as error:
                raise BackendError(f"the peer's memory cannot be mapped: {error}") from error
            self._storages.append(storage)
            bases.append(storage.data_ptr())
        self.spans = span_table(
            [(bases[index] + offset, stride) for index, offset, stride, _ in peer.spans], device
        )
        self.used_at = time.monotonic()
        self.readers = 0


class Mappings:
    """All mappings of one backend. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._open: dict[str, Mapping] = {}

    def take(self, peer: PeerDescription) -> Mapping:
        """The peer's mapping, made now if it is new; to be given back after use.

        Raises:
            BackendError: the peer's memory cannot be mapped.
        """
        with self._lock:
            self._drop_idle(time.monotonic())
            found = self._open.get(peer.instance)
            if found is None:
                found = self._open[peer.instance] = Mapping(peer, self._device)
            found.readers += 1
            return found

    def give_back(self, mapping: Mapping) -> None:
        """A reader is done."""
        with self._lock:
            mapping.readers -= 1
            mapping.used_at = time.monotonic()

    def drop(self, instance: str) -> None:
        """Unmap a peer that has ended; a reader under way keeps it mapped until it is done."""
        with self._lock:
            self._open.pop(instance, None)

    def close(self) -> None:
        """Unmap everything."""
        with self._lock:
            self._open.clear()

    def _drop_idle(self, now: float) -> None:
        for instance, mapping in list(self._open.items()):
            if not mapping.readers and now - mapping.used_at > IDLE_S:
                del self._open[instance]
