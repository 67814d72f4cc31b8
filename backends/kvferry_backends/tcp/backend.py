"""The tcp backend as the connectors see it."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize, Capabilities, Posted, ReadRequest, Regions
from kvferry_backends import digest
from kvferry_backends.layout import HostPool
from kvferry_backends.open_reads import OpenReads
from kvferry_backends.pairing import check_request
from kvferry_backends.tcp.admission import BUSY, Admission
from kvferry_backends.tcp.connection import TcpConnection
from kvferry_backends.tcp.fetching import Fetch
from kvferry_backends.tcp.links import Links
from kvferry_backends.tcp.listener import Listener
from kvferry_backends.tcp.options import join_address, parse_options
from kvferry_backends.tcp.pace import Pace
from kvferry_backends.tcp.reading import Read
from kvferry_backends.tcp.serving import Server
from kvferry_backends.tcp.stream import Stream
from kvferry_backends.tcp.wire import (
    PROTOCOL,
    PeerDescription,
    ReadPart,
    chunk_blocks,
    decode_peer,
    encode_peer,
    pack_blocks,
    refusal,
)

STRIPE_MIN_BYTES = 1024 * 1024
"""A further connection is used for each so many bytes."""

if TYPE_CHECKING:
    from kvferry_backends.tcp.tls.process import TlsGate

_log = logging.getLogger("kvferry.backends.tcp")


class TcpBackend:
    """Implements :class:`kvferry.ports.backend.Backend` over TCP sockets.

    ``authorize`` is called on the server's threads, several at a time.
    """

    name = "tcp"
    capabilities = Capabilities(
        memory=frozenset({"host"}),
        one_sided=False,
        same_host_only=False,
        fence="socket_closed",
        digest=True,
    )

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Nothing is opened before :meth:`register`.

        Raises:
            ConfigError: an option is unknown or out of range.
        """
        self._options = parse_options(options or {})
        self._instance = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._reads = OpenReads(
            self.name,
            self._options.reads,
            "wait for one, or set the tcp backend's option reads higher",
        )
        self._links = Links()
        self._pace = Pace()
        self._dial: Callable[[str], Stream] = Stream.unconnected
        self._threads = ThreadPoolExecutor(
            max_workers=self._options.reads * self._options.connections_per_read,
            thread_name_prefix="kvferry-tcp-read",
        )
        self._pool: HostPool | None = None
        self._listener: Listener | None = None
        if "xxh3_64" not in digest.names():
            _log.warning("xxhash is not installed: blocks are compared by crc32, which is slower")

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Serve reads of these blocks from now on. Once in a backend's life.

        Raises:
            BackendError: the regions are not host memory or no pool of blocks, or there are
                some already.
            BackendUnavailable: the listening address cannot be had.
        """
        pool = HostPool(regions)
        options = self._options
        admission = Admission(options.serve_transfers, options.serve_bytes)
        server = Server(pool, authorize, self._instance, options.timeout_s, admission)
        with self._lock:
            self._reads.check_open()
            if self._pool is not None:
                raise BackendError(
                    "this tcp backend has its regions; make a new one for another pool"
                )
            gate = self._open_gate()
            listener = Listener(
                self.name,
                options.listen_host,
                options.listen_port,
                lambda stream, peer: TcpConnection(server, stream, peer),
                connections_max=options.serve_connections,
                last_word=refusal(f"{BUSY}: all {options.serve_connections} connections are taken"),
                door=gate,
            )
            self._pool, self._listener = pool, listener
            if gate is not None:
                self._dial = gate.stream
        _log.info(
            "serving %s blocks of %s bytes at %s", pool.blocks, pool.block_bytes, self._address()
        )

    def describe(self) -> bytes:
        """What a peer needs to read from us.

        Raises:
            BackendError: nothing is registered.
        """
        pool = self._registered()
        return encode_peer(
            PeerDescription(
                protocol=PROTOCOL,
                address=self._address(),
                instance=self._instance,
                blocks=pool.blocks,
                widths=pool.widths,
                digests=digest.names(),
                tls=self._options.tls is not None,
            )
        )

    def post(self, request: ReadRequest) -> Posted:
        """Start a read on threads of our own. Returns at once.

        Raises:
            BackendError: the request does not fit the regions of one of the two sides, or
                as many reads are under way as the option ``reads`` allows.
        """
        pool = self._registered()
        peer = decode_peer(request.peer)
        sources, targets = check_request(
            request,
            widths=pool.widths,
            blocks=pool.blocks,
            peer_widths=peer.widths,
            peer_blocks=peer.blocks,
        )
        self._check_tls(peer)
        packed = pack_blocks(sources)
        function = digest.common(peer.digests)
        deadline = time.monotonic() + request.deadline_s
        ranges = self._stripes(len(targets), pool)
        per_chunk = self._options.chunk_blocks or chunk_blocks(
            request.verify, pool.block_bytes, len(pool.widths)
        )
        read = Read(request.transfer, len(ranges), self._reads.drop, peer.instance)
        fetches = [
            Fetch(
                read,
                ReadPart(
                    protocol=PROTOCOL,
                    instance=peer.instance,
                    transfer=request.transfer,
                    grant=request.grant,
                    blocks=packed,
                    start=start,
                    stop=stop,
                    chunk_blocks=per_chunk,
                    widths=pool.widths,
                    verify=request.verify,
                    digest=function,
                    deadline_ms=0,
                ),
                address=peer.address,
                target_blocks=targets,
                pool=pool,
                links=self._links,
                deadline=deadline,
                dial=self._dial,
                pace=self._pace,
            )
            for start, stop in ranges
        ]
        self._reads.add(read)
        read.start(self._threads, *(fetch.run for fetch in fetches))
        return read

    def forget(self, peer: bytes) -> None:
        """Close the connections to a process that has ended, and cut the reads from it."""
        try:
            gone = decode_peer(peer)
        except BackendError as error:
            _log.debug("nothing to forget: %s", error)
            return
        self._reads.lost(gone.instance, f"the process at {gone.address} has ended")
        self._links.drop(gone.address)

    def close(self) -> None:
        """Stop serving, abort every read, join every thread. May be called twice."""
        with self._lock:
            self._reads.close()
            listener = self._listener
        fenced = self._reads.abort_all()
        if listener is not None:
            listener.close()
        # A thread that the fence could not stop ends by its own deadline; do not wait for that.
        self._threads.shutdown(wait=fenced)
        self._links.close()

    def _stripes(self, blocks: int, pool: HostPool) -> list[tuple[int, int]]:
        useful = max(1, blocks * pool.block_bytes // STRIPE_MIN_BYTES)
        count = min(self._options.connections_per_read, blocks, useful)
        edges = [blocks * nth // count for nth in range(count + 1)]
        return list(itertools.pairwise(edges))

    def _address(self) -> str:
        if self._options.advertise:
            return self._options.advertise
        assert self._listener is not None
        return join_address(self._options.listen_host, self._listener.port)

    def _registered(self) -> HostPool:
        if self._pool is None:
            raise BackendError("no regions are registered; call register() first")
        return self._pool

    def _open_gate(self) -> TlsGate | None:
        options = self._options
        if options.tls is None:
            return None
        # Only who wants TLS pays for the library.
        from kvferry_backends.tcp.tls.process import TlsGate

        return TlsGate(
            options.listen_host, options.listen_port, options.tls, options.serve_connections
        )

    def _check_tls(self, peer: PeerDescription) -> None:
        ours = self._options.tls is not None
        if ours != peer.tls:
            there, here = ("with", "without") if peer.tls else ("without", "with")
            raise BackendError(
                f"the source at {peer.address} serves {there} TLS and this engine's tcp backend "
                f"runs {here}; set tls_cert_file, tls_key_file and tls_ca_file on both or on none"
            )
