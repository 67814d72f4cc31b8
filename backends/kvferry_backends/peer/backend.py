"""The CUDA peer backend: the target reads the source's memory by itself, over NVLink or PCIe."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Any

import msgspec

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import (
    Authorize,
    Capabilities,
    Posted,
    ReadRequest,
    Regions,
)
from kvferry_backends.layout import check_regions
from kvferry_backends.pairing import check_request, host_id
from kvferry_backends.peer.wire import (
    PROTOCOL,
    Allocation,
    PeerDescription,
    decode,
)

log = logging.getLogger("kvferry.backends")


class PeerBackend:
    """Reads blocks of another process of this host with one kernel a transfer.

    One-sided: the source takes no part and cannot refuse, so a read proves nothing until the
    source has answered ``intact``. Blocks carry no digest, for they cross no wire of ours.
    """

    name = "peer"
    capabilities = Capabilities(
        memory=frozenset({"cuda"}),
        one_sided=True,
        same_host_only=True,
        fence="kernel_finished",
    )

    def __init__(self, options: dict[str, object]) -> None:
        if options:
            raise ConfigError(f"backend peer has no options; remove {', '.join(sorted(options))}")
        try:
            import torch
            import triton  # noqa: F401
        except ImportError as error:
            raise BackendUnavailable(f"backend peer needs torch and triton: {error}") from error
        if not torch.cuda.is_available():
            raise BackendUnavailable("backend peer needs a CUDA device, and torch sees none")
        self._host = host_id()
        self._instance = secrets.token_hex(8)
        self._regions: Regions | None = None
        self._description = b""
        self._lock = threading.Lock()
        self._closed = False

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Share these blocks over CUDA IPC, and compile the kernel.

        Raises:
            BackendError: the memory is not CUDA memory, its spans differ in length, or CUDA
                cannot share it (expandable segments, sleep mode).
        """
        import torch

        from kvferry_backends.peer.gather import WORD_BYTES, launch, span_table
        from kvferry_backends.peer.mapping import Mappings

        check_regions(regions)
        widths = {span.length for span in regions.spans}
        if regions.kind != "cuda" or len(widths) != 1 or widths.pop() % WORD_BYTES:
            raise BackendError(
                "backend peer moves CUDA memory whose spans have one length, a multiple of 8"
            )
        self._device = torch.device("cuda", regions.device)
        self._span_bytes = regions.spans[0].length
        self._description = self._share(regions)
        self._regions = regions
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream(priority=-1)
            self._targets = span_table(
                [(span.address, span.stride) for span in regions.spans], self._device
            )
            self._mappings = Mappings(self._device)
            # Compiled now, onto itself, so that the first transfer does not wait for it.
            none = torch.zeros(1, dtype=torch.int32, device=self._device)
            with torch.cuda.stream(self._stream):
                launch(self._targets, self._targets, none, none, self._span_bytes)
            self._stream.synchronize()

    def _share(self, regions: Regions) -> bytes:
        owners: Any = regions.owner
        storages: dict[int, Any] = {}
        for tensor in owners:
            storage = tensor.untyped_storage()
            storages.setdefault(storage.data_ptr(), storage)
        bases = sorted(storages)
        spans = []
        for span in regions.spans:
            index = max(i for i, base in enumerate(bases) if base <= span.address)
            spans.append((index, span.address - bases[index], span.stride, span.length))
        try:
            shared = [storages[base]._share_cuda_() for base in bases]
        except RuntimeError as error:
            raise BackendError(
                f"CUDA cannot share the KV cache ({error}); start the engine without "
                "expandable_segments and without sleep mode"
            ) from error
        return msgspec.msgpack.encode(
            PeerDescription(
                protocol=PROTOCOL,
                host=self._host,
                instance=self._instance,
                blocks=regions.blocks,
                spans=tuple(spans),
                allocations=tuple(
                    Allocation(tuple(share[1:]), base, storages[base].nbytes())
                    for base, share in zip(bases, shared, strict=True)
                ),
            )
        )

    def describe(self) -> bytes:
        """What a peer needs to map our blocks.

        Raises:
            BackendError: nothing is registered.
        """
        if not self._description:
            raise BackendError("backend peer has no blocks yet; register first")
        return self._description

    def post(self, request: ReadRequest) -> Posted:
        """Launch the kernel and return.

        Raises:
            BackendError: another host, another shape, ids out of range, or no mapping.
        """
        import torch

        from kvferry_backends.peer.gather import launch
        from kvferry_backends.peer.reading import KernelRead

        regions = self._regions
        if regions is None or self._closed:
            raise BackendError("backend peer is not registered, or closed")
        peer = decode(request.peer)
        self._check(request, peer, regions)
        began = time.monotonic()
        mapping = self._mappings.take(peer)
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                ids = torch.tensor(
                    [list(request.source_blocks), list(request.target_blocks)], dtype=torch.int32
                ).to(self._device, non_blocking=True)
                launch(mapping.spans, self._targets, ids[0], ids[1], self._span_bytes)
                done = torch.cuda.Event()
                done.record(self._stream)
        except RuntimeError as error:
            self._mappings.give_back(mapping)
            raise BackendError(f"the gather kernel cannot be started: {error}") from error
        total = len(request.target_blocks) * regions.block_bytes
        return KernelRead(
            done, total, began, on_end=lambda: self._mappings.give_back(mapping), keep=ids
        )

    def _check(self, request: ReadRequest, peer: PeerDescription, regions: Regions) -> None:
        if peer.host != self._host:
            raise BackendError("the peer is on another host; backend peer reaches this one only")
        check_request(
            request,
            widths=[span.length for span in regions.spans],
            blocks=regions.blocks,
            peer_widths=[length for _, _, _, length in peer.spans],
            peer_blocks=peer.blocks,
        )

    def forget(self, peer: bytes) -> None:
        """Unmap a process that has ended, at once or when the kernels that read it are done."""
        try:
            gone = decode(peer)
        except BackendError as error:
            log.debug("nothing to forget: %s", error)
            return
        if self._regions is not None:
            self._mappings.drop(gone.instance)

    def close(self) -> None:
        """Wait for running kernels and unmap every peer."""
        with self._lock:
            if self._closed or self._regions is None:
                self._closed = True
                return
            self._closed = True
        self._stream.synchronize()
        self._mappings.close()
