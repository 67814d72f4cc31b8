"""From registered regions to a description, and from a description to addresses in this process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.identity import Identity
from kvferry_backends.peer.driver import Extent
from kvferry_backends.peer.wire import PROTOCOL, Allocation, PeerDescription, PlacedSpan


class Driver(Protocol):
    """What of :class:`kvferry_backends.peer.driver.CudaDriver` sharing needs."""

    def extent(self, address: int) -> Extent: ...
    def device_of(self, address: int) -> int: ...
    def can_share(self, address: int) -> bool: ...
    def share(self, base: int) -> bytes: ...
    def open(self, handle: bytes) -> int: ...
    def close(self, address: int) -> None: ...


def describe_regions(
    regions: Regions, driver: Driver, process: Identity, instance: str
) -> PeerDescription:
    """Share the allocations in which the regions lie.

    Raises:
        BackendError: CUDA IPC cannot share one of them; the text says what to change.
    """
    allocations: dict[int, Allocation] = {}
    spans = []
    for span in regions.spans:
        base, size = driver.extent(span.address)
        if base not in allocations:
            allocations[base] = Allocation(_handle(driver, base), base, size)
        offset = span.address - base
        if offset + (regions.blocks - 1) * span.stride + span.length > size:
            raise BackendError(
                "a span of the KV cache lies in more than one allocation, as with "
                "expandable_segments; unset it in PYTORCH_CUDA_ALLOC_CONF"
            )
        index = list(allocations).index(base)
        spans.append(PlacedSpan(index, offset, span.stride, span.length))
    return PeerDescription(
        protocol=PROTOCOL,
        process=process,
        instance=instance,
        blocks=regions.blocks,
        spans=tuple(spans),
        allocations=tuple(allocations.values()),
    )


def _handle(driver: Driver, base: int) -> bytes:
    if not driver.can_share(base):
        raise BackendError(
            "CUDA IPC cannot share the KV cache, for it lies in virtual memory management "
            "(sleep mode, the cumem allocator, expandable_segments); start the engine without "
            "these, or leave this node to the next backend"
        )
    try:
        return driver.share(base)
    except BackendError as error:
        raise BackendError(
            f"CUDA IPC cannot share the KV cache ({error}); in a container CUDA IPC needs the "
            "host's IPC namespace (docker --ipc=host)"
        ) from error


class OpenedPeer:
    """A peer's spans as addresses of this process."""

    def __init__(self, peer: PeerDescription, driver: Driver, ours: Identity, own: Span) -> None:
        """Map every allocation of ``peer``. ``own`` is a span of ours, on the GPU that reads.

        Raises:
            BackendError: the peer's memory cannot be mapped, or it is on another host.
        """
        if peer.process.host != ours.host:
            raise BackendError("the peer is on another host; backend peer reaches this one only")
        self._closing = ExitStack()
        bases = [a.base for a in peer.allocations]
        if peer.process == ours:
            # A process cannot map its own memory: it is there already.
            if any(driver.device_of(base) != driver.device_of(own.address) for base in bases):
                raise BackendError("within one process, backend peer moves blocks of one GPU only")
        else:
            with ExitStack() as opening:
                for index, allocation in enumerate(peer.allocations):
                    bases[index] = _open(driver, allocation, peer)
                    opening.callback(driver.close, bases[index])
                self._closing = opening.pop_all()
        self.spans = [
            (bases[span.allocation] + span.offset, span.stride, span.length) for span in peer.spans
        ]

    def close(self) -> None:
        """Unmap. No kernel may read these addresses any more.

        Raises:
            BackendError: the driver refuses.
        """
        self._closing.close()


def _open(driver: Driver, allocation: Allocation, peer: PeerDescription) -> int:
    try:
        return driver.open(allocation.handle)
    except BackendError as error:
        raise BackendError(
            f"the memory of process {peer.process.pid} cannot be mapped ({error}): it has ended, "
            "or the two GPUs cannot reach each other (nvidia-smi topo -p2p r)"
        ) from error
