"""The CUDA peer backend as the connectors see it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import Authorize, Capabilities, Posted, ReadRequest, Regions
from kvferry_backends.identity import Identity, lives, own_identity
from kvferry_backends.layout import check_regions
from kvferry_backends.pairing import check_request
from kvferry_backends.peer.mapping import Mapping, Mappings, Opened
from kvferry_backends.peer.reading import Done, KernelRead
from kvferry_backends.peer.wire import PeerDescription, decode

log = logging.getLogger("kvferry.backends.peer")


class Device(Protocol):
    """What of :class:`kvferry_backends.peer.device.CudaDevice` the backend uses."""

    @property
    def description(self) -> PeerDescription: ...
    def open(self, peer: PeerDescription) -> Opened: ...
    def copy(
        self, peer: Any, sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[Done, object]: ...


MakeDevice = Callable[[Regions, Identity, str], Device]


class PeerBackend:
    """Reads blocks of another process of this host with one kernel a transfer.

    One-sided: the source takes no part and cannot refuse, so a read proves nothing until the
    source has answered ``intact``. Blocks carry no digest, for they cross no wire of ours. Works
    where each process sees one GPU only. How it is ordered with the engine's own work is said in
    :mod:`kvferry_backends.peer`.
    """

    name = "peer"
    capabilities = Capabilities(
        memory=frozenset({"cuda"}),
        one_sided=True,
        same_host_only=True,
        fence="kernel_finished",
    )

    def __init__(
        self, options: dict[str, object], *, make_device: MakeDevice | None = None
    ) -> None:
        """Touches no device yet; ``make_device`` stands in for a GPU in tests.

        Raises:
            ConfigError: there is an option; it has none.
            BackendUnavailable: torch or triton is missing, or torch sees no CUDA device.
        """
        if options:
            raise ConfigError(f"backend peer has no options; remove {', '.join(sorted(options))}")
        self._make_device = make_device or _cuda_device()
        self._identity = own_identity()
        self._instance = secrets.token_hex(8)
        self._regions: Regions | None = None
        self._description = b""
        self._lock = threading.Lock()
        self._reads: set[KernelRead] = set()
        self._closed = False

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Share these blocks over CUDA IPC, and compile the kernel. Once in a backend's life.

        ``authorize`` is never called: a reader asks nobody.

        Raises:
            BackendError: the memory is not CUDA memory, CUDA IPC cannot share it (sleep mode,
                expandable segments), or there are regions already.
        """
        if regions.kind != "cuda":
            raise BackendError(f"peer reads CUDA memory, and the regions are {regions.kind}")
        check_regions(regions)
        with self._lock:
            self._check_open()
            if self._regions is not None:
                raise BackendError(
                    "this peer backend has its regions; make a new one for another pool"
                )
            self._device = self._make_device(regions, self._identity, self._instance)
            self._mappings = Mappings(self._device.open, self._lives)
            self._description = msgspec.msgpack.encode(self._device.description)
            self._regions = regions

    def describe(self) -> bytes:
        """What a peer needs to map our blocks.

        Raises:
            BackendError: nothing is registered.
        """
        self._registered()
        return self._description

    def post(self, request: ReadRequest) -> Posted:
        """Launch the kernel and return.

        Raises:
            BackendError: another host, another shape, ids out of range, the peer's process has
                ended, or its memory cannot be mapped.
        """
        regions = self._registered()
        peer = decode(request.peer)
        sources, targets = check_request(
            request,
            widths=[span.length for span in regions.spans],
            blocks=regions.blocks,
            peer_widths=peer.widths,
            peer_blocks=peer.blocks,
        )
        began_s = time.monotonic()
        with self._lock:
            # Within the lock, so that close() finds every read whose kernel was launched.
            self._check_open()
            mapping = self._mappings.take(peer)
            try:
                done, keep = self._device.copy(mapping.opened, sources, targets)
            except RuntimeError as error:
                self._mappings.give_back(mapping)
                raise BackendError(f"the gather kernel cannot be started: {error}") from error
            read = KernelRead(
                done,
                len(targets) * regions.block_bytes,
                began_s,
                on_end=lambda ended: self._ended(ended, mapping),
                keep=keep,
            )
            self._reads.add(read)
        return read

    def forget(self, peer: bytes) -> None:
        """Unmap a process that has ended, at once or when the kernels that read it are done."""
        try:
            gone = decode(peer)
        except BackendError as error:
            log.debug("nothing to forget: %s", error)
            return
        if self._regions is not None:
            self._mappings.drop(
                gone.instance, f"the connector says that process {gone.process.pid} has ended"
            )

    def close(self) -> None:
        """Wait for running kernels and unmap every peer. May be called twice.

        Raises:
            BackendError: a kernel does not end (:class:`KernelRead`).
        """
        with self._lock:
            self._closed = True
            reads = list(self._reads)
        stuck = ""
        for read in reads:
            try:
                read.abort()
            except BackendError as error:
                stuck = str(error)
        if self._regions is not None:
            self._mappings.close()
        if stuck:
            raise BackendError(stuck)

    def _ended(self, read: KernelRead, mapping: Mapping[Any]) -> str:
        with self._lock:
            self._reads.discard(read)
        return self._mappings.give_back(mapping)

    def _lives(self, process: Identity) -> bool | None:
        return lives(process, self._identity)

    def _registered(self) -> Regions:
        if self._regions is None:
            raise BackendError("backend peer has no blocks yet; register first")
        return self._regions

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("backend peer is closed")


def _cuda_device() -> MakeDevice:
    """
    Raises:
        BackendUnavailable: this process has no GPU, or lacks a library.
    """
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(f"backend peer needs torch and triton: {error}") from error
    if not torch.cuda.is_available():
        raise BackendUnavailable("backend peer needs a CUDA device, and torch sees none")

    def make(regions: Regions, process: Identity, instance: str) -> Device:
        from kvferry_backends.peer.device import CudaDevice

        return CudaDevice(regions, process, instance)

    return make
