"""The nccl backend as the connectors see it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import Authorize, Capabilities, Posted, ReadRequest, Regions
from kvferry_backends.control.calls import Calls
from kvferry_backends.control.server import ControlServer
from kvferry_backends.layout import check_regions
from kvferry_backends.nccl.local import Local
from kvferry_backends.nccl.messages import PROTOCOL, PeerDescription, encode
from kvferry_backends.nccl.options import NcclOptions, parse_options
from kvferry_backends.nccl.pair import Job, Pair
from kvferry_backends.nccl.pipe import Device
from kvferry_backends.nccl.reading import Read
from kvferry_backends.nccl.seats import Seats
from kvferry_backends.nccl.source import Source
from kvferry_backends.open_reads import OpenReads
from kvferry_backends.pairing import check_request, decode_description
from kvferry_backends.tcp.options import join_address

READS_MAX = 16
"""Reads posted and not yet ended at one time."""
JOIN_S = 10.0

MakeDevice = Callable[[Regions, NcclOptions], Device]

_log = logging.getLogger("kvferry.backends.nccl")


class NcclBackend:
    """Implements :class:`kvferry.ports.backend.Backend` with ``ncclSend`` and ``ncclRecv``.

    Reads from one source go one after the other, over a communicator of their own. Blocks carry
    no digest. ``authorize`` is called on the server's threads, several at a time.
    """

    name = "nccl"
    capabilities = Capabilities(
        memory=frozenset({"cuda"}),
        one_sided=False,
        same_host_only=False,
        fence="communicator_aborted",
    )

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        make_device: MakeDevice | None = None,
    ) -> None:
        """``make_device`` stands in for the GPU and NCCL where there is none.

        Raises:
            ConfigError: an option is unknown or out of range.
            BackendUnavailable: nccl4py, NCCL or a GPU is missing.
        """
        self._options = parse_options(options or {})
        self._make_device = make_device or _real_device()
        self._instance = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._reads = OpenReads(self.name, READS_MAX)
        self._pairs: dict[str, Pair] = {}
        self._ending: list[Pair] = []
        self._calls = Calls(self.name)
        self._reading_seats = Seats(self._options.communicators)
        self._local: Local | None = None
        self._source: Source | None = None
        self._server: ControlServer | None = None

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Serve reads of these blocks from now on. Once in a backend's life.

        Raises:
            BackendError: the regions are not CUDA memory or no pool of blocks, or there are
                some already.
            BackendUnavailable: the listening address cannot be had.
        """
        check_regions(regions)
        with self._lock:
            self._reads.check_open()
            if self._local is not None:
                raise BackendError(
                    "this nccl backend has its regions; make a new one for another pool"
                )
            local = Local(
                instance=self._instance,
                device=self._make_device(regions, self._options),
                blocks=regions.blocks,
                widths=tuple(span.length for span in regions.spans),
                slot_blocks=self._options.slot_blocks(regions.block_bytes),
                slots=self._options.slots,
            )
            source = Source(local, Seats(self._options.communicators))
            self._server = ControlServer(
                self.name,
                self._instance,
                authorize,
                regions.blocks,
                source.serve,
                host=self._options.listen_host,
                port=self._options.listen_port,
                timeout_s=self._options.timeout_s,
            )
            self._local, self._source = local, source

    def describe(self) -> bytes:
        """What a peer needs to read from us.

        Raises:
            BackendError: nothing is registered.
        """
        local = self._registered()
        return encode(
            PeerDescription(
                protocol=PROTOCOL,
                address=self._address(),
                instance=self._instance,
                gpu=local.device.gpu,
                nccl=local.device.version,
                blocks=local.blocks,
                widths=local.widths,
                slot_blocks=local.slot_blocks,
            )
        )

    def post(self, request: ReadRequest) -> Posted:
        """Queue a read behind others from the same source. Returns at once.

        Raises:
            BackendError: the request does not fit the regions of one of the two sides, NCCL
                cannot connect the two, or :data:`READS_MAX` reads are under way.
        """
        local = self._registered()
        peer = decode_description(request.peer, PeerDescription, PROTOCOL, self.name)
        sources, targets = check_request(
            request,
            widths=local.widths,
            blocks=local.blocks,
            peer_widths=peer.widths,
            peer_blocks=peer.blocks,
        )
        _check_peer(peer, local)
        read = Read(
            request.transfer, peer.instance, time.monotonic() + request.deadline_s, self._reads.drop
        )
        job = Job(read, request.grant, sources, targets)
        with self._lock:
            self._reads.add(read)
            pair = self._pairs.get(peer.instance)
            if pair is None or not pair.put(job):
                pair = self._new_pair(local, peer)
                pair.put(job)
        return read

    def forget(self, peer: bytes) -> None:
        """End the communicators with a process that has ended, and the reads from it."""
        try:
            gone = decode_description(peer, PeerDescription, PROTOCOL, self.name)
        except BackendError as error:
            _log.debug("nothing to forget: %s", error)
            return
        with self._lock:
            pair = self._pairs.pop(gone.instance, None)
            if pair is not None:
                self._ending.append(pair)
        self._reads.lost(gone.instance, f"the process at {gone.address} has ended")
        if pair is not None:
            pair.leave()
        self._calls.drop(gone.address)
        if self._source is not None:
            self._source.forget(gone.instance)

    def close(self) -> None:
        """Stop serving, abort every read, join every thread. May be called twice."""
        with self._lock:
            self._reads.close()
            pairs = [*self._pairs.values(), *self._ending]
        for pair in pairs:
            pair.leave()
        self._reads.abort_all()
        if self._server is not None:
            self._server.close()
        if self._source is not None:
            self._source.close()
        give_up = time.monotonic() + JOIN_S
        for pair in pairs:
            if not pair.join(max(0.0, give_up - time.monotonic())):
                _log.error("the pair with %s did not end within %s s", pair.peer.address, JOIN_S)
        self._calls.close()

    def _new_pair(self, local: Local, peer: PeerDescription) -> Pair:
        """Under the lock. Pairs that have ended are let go of."""
        for instance in [instance for instance, pair in self._pairs.items() if pair.over]:
            self._ending.append(self._pairs.pop(instance))
        self._ending = [pair for pair in self._ending if not pair.join(0.0)]
        pair = self._pairs[peer.instance] = Pair(local, peer, self._calls, self._reading_seats)
        return pair

    def _address(self) -> str:
        if self._options.advertise:
            return self._options.advertise
        assert self._server is not None
        return join_address(self._options.listen_host, self._server.port)

    def _registered(self) -> Local:
        if self._local is None:
            raise BackendError("no regions are registered; call register() first")
        return self._local


def _real_device() -> MakeDevice:
    try:
        from kvferry_backends.nccl.cuda_device import cuda_device_maker
    except ImportError as error:
        raise BackendUnavailable(f"backend nccl needs torch and triton: {error}") from error
    return cuda_device_maker()


def _check_peer(peer: PeerDescription, local: Local) -> None:
    device = local.device
    if peer.nccl != device.version:
        raise BackendError(
            f"the peer has NCCL {peer.nccl}, we {device.version}, and the two do not connect; "
            "install the same build of torch on both"
        )
    if peer.gpu == device.gpu:
        raise BackendError(
            "the peer is on the same GPU, and NCCL does not connect a GPU with itself; "
            "take backend peer for this pair"
        )
