"""Stand-ins for what cannot exist without a GPU: the CUDA driver, a device, and an event.

The device keeps its pool in host memory and copies with ``memmove`` when the test lets its
"kernel" end; everything around it is the shipped code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions
from kvferry_backends.identity import Identity
from kvferry_backends.peer.driver import HANDLE_BYTES, Extent
from kvferry_backends.peer.sharing import OpenedPeer, describe_regions
from kvferry_backends.peer.wire import PeerDescription


class FakeDriver:
    """Allocations at given places; what is opened lies ``MOVED`` further up."""

    MOVED = 0

    def __init__(self, *extents: Extent) -> None:
        self.extents = extents
        self.legacy = True
        self.refuses = ""
        self.devices: dict[int, int] = {}
        self.mapped: list[int] = []

    def extent(self, address: int) -> Extent:
        for extent in self.extents:
            if extent.base <= address < extent.base + extent.size:
                return extent
        raise BackendError("cuMemGetAddressRange_v2 failed: CUDA_ERROR_NOT_FOUND (500)")

    def device_of(self, address: int) -> int:
        return self.devices.get(address, 0)

    def can_share(self, address: int) -> bool:
        return self.legacy

    def share(self, base: int) -> bytes:
        if self.refuses:
            raise BackendError(self.refuses)
        return base.to_bytes(8, "little").ljust(HANDLE_BYTES, b"\0")

    def open(self, handle: bytes) -> int:
        if self.refuses:
            raise BackendError(self.refuses)
        self.mapped.append(int.from_bytes(handle[:8], "little") + self.MOVED)
        return self.mapped[-1]

    def close(self, address: int) -> None:
        self.mapped.remove(address)
        if self.refuses:
            raise BackendError(self.refuses)


class FakeEvent:
    """A kernel that runs when the test lets it."""

    def __init__(self, device: FakeDevice, copies: list[tuple[int, int, int]]) -> None:
        self._device = device
        self._copies = copies

    def query(self) -> bool:
        if self._device.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if not self._device.running:
            for source, target, length in self._copies:
                ctypes.memmove(target, source, length)
            self._copies = []
        return not self._copies


class FakeDevice:
    """As :class:`kvferry_backends.peer.device.CudaDevice`, over host memory of this process."""

    def __init__(self, regions: Regions, process: Identity, instance: str) -> None:
        self.running = False
        self.lost = False
        self.refuses_launch = False
        self._regions = regions
        self._process = process
        base = min(span.address for span in regions.spans)
        end = max(s.address + (regions.blocks - 1) * s.stride + s.length for s in regions.spans)
        self.driver = FakeDriver(Extent(base, end - base))
        self.description = describe_regions(regions, self.driver, process, instance)

    def open(self, peer: PeerDescription) -> OpenedPeer:
        return OpenedPeer(peer, self.driver, self._process, self._regions.spans[0])

    def copy(
        self, peer: OpenedPeer, sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[FakeEvent, object]:
        if self.refuses_launch:
            raise RuntimeError("CUDA error: out of memory")
        copies = [
            (address + s * stride, ours.address + t * ours.stride, length)
            for (address, stride, length), ours in zip(peer.spans, self._regions.spans, strict=True)
            for s, t in zip(sources, targets, strict=True)
        ]
        return FakeEvent(self, copies), None
