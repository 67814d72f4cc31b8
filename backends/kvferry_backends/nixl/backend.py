"""The nixl backend as the connectors see it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize, Capabilities, Posted, ReadRequest, Regions
from kvferry_backends.control.calls import Calls
from kvferry_backends.control.server import ControlServer
from kvferry_backends.nixl import library
from kvferry_backends.nixl.agent import Agent
from kvferry_backends.nixl.job import Job, Read
from kvferry_backends.nixl.links import Links
from kvferry_backends.nixl.options import parse_options
from kvferry_backends.nixl.pool import PeerPool, Pool
from kvferry_backends.nixl.reach import check_reach, has_rdma
from kvferry_backends.nixl.reading import Reader
from kvferry_backends.nixl.serving import Source
from kvferry_backends.nixl.wire import PROTOCOL, PeerDescription, encode
from kvferry_backends.open_reads import OpenReads
from kvferry_backends.pairing import check_request, decode_description, host_id
from kvferry_backends.tcp.options import join_address

READS_MAX = 16
"""Reads under way at one time."""

_log = logging.getLogger("kvferry.backends.nixl")


class NixlBackend:
    """Implements :class:`kvferry.ports.backend.Backend` over NIXL with UCX.

    ``authorize`` is called on the control server's threads, several at a time.
    """

    name = "nixl"
    capabilities = Capabilities(
        memory=frozenset({"host", "cuda"}),
        one_sided=False,
        same_host_only=False,
        fence="agent_destroyed",
    )

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Nothing is opened before :meth:`register`.

        Raises:
            ConfigError: an option is unknown or out of range.
            BackendUnavailable: NIXL is not installed here.
        """
        self._options = parse_options(options or {})
        self._library = library.find()
        self._instance = secrets.token_hex(8)
        self._host = host_id()
        self._rdma = has_rdma()
        self._lock = threading.Lock()
        self._reads = OpenReads(self.name, READS_MAX)
        self._calls = Calls(self.name)
        self._threads = ThreadPoolExecutor(READS_MAX, thread_name_prefix="kvferry-nixl-read")
        self._pool: Pool | None = None
        self._agent: Agent | None = None
        self._links: Links | None = None
        self._server: ControlServer | None = None
        self._description = b""

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Serve reads of these blocks from now on. Once in a backend's life.

        Raises:
            BackendError: the regions are no pool, or NIXL cannot register them, or there are
                some already.
            BackendUnavailable: UCX or the listening address cannot be had.
        """
        with self._lock:
            self._reads.check_open()
            if self._pool is not None:
                raise BackendError(
                    "this nixl backend has its regions; make a new one for another pool"
                )
            pool = Pool(regions, self._options)
            pool.enter()
            agent = Agent(self._library, self._instance, self._options)
            try:
                agent.register(pool.areas, regions.kind, regions.device)
                self._server = ControlServer(
                    self.name,
                    self._instance,
                    authorize,
                    regions.blocks,
                    Source(pool, agent).serve,
                    host=self._options.listen_host,
                    port=self._options.listen_port,
                    timeout_s=self._options.timeout_s,
                )
                self._description = self._described(pool, agent.metadata(), self._server.port)
            except BaseException:
                if self._server is not None:
                    self._server.close()
                agent.end()
                raise
            self._pool, self._agent = pool, agent
            self._links = Links(self._library, self._options, self._instance, pool)
        _log.info("serving %s blocks of %s bytes", regions.blocks, regions.block_bytes)

    def describe(self) -> bytes:
        """What a peer needs to read from us.

        Raises:
            BackendError: nothing is registered.
        """
        self._registered()
        return self._description

    def post(self, request: ReadRequest) -> Posted:
        """Start a read on a thread of our own. Returns at once.

        Raises:
            BackendError: the request does not fit the regions of one of the two sides, the peer
                could be reached over TCP only, or :data:`READS_MAX` reads are under way.
        """
        pool, links = self._registered()
        peer = decode_description(request.peer, PeerDescription, PROTOCOL, self.name)
        check_reach(peer, self._host, self._rdma, allow_tcp=self._options.allow_tcp)
        theirs = PeerPool.of(peer)
        sources, targets = check_request(
            request,
            widths=pool.widths,
            blocks=pool.regions.blocks,
            peer_widths=theirs.widths,
            peer_blocks=peer.blocks,
        )
        read = Read(request.transfer, peer.instance, self._reads.drop)
        job = Job(
            read,
            request,
            peer,
            theirs,
            pool,
            sources=np.array(sources, dtype=np.int32),
            targets=np.array(targets, dtype=np.int32),
        )
        self._reads.add(read)
        read.start(self._threads, Reader(job, links, self._calls, self._options).run)
        return read

    def forget(self, peer: bytes) -> None:
        """End the agent that reads from a process that has ended, and the reads themselves."""
        try:
            gone = decode_description(peer, PeerDescription, PROTOCOL, self.name)
        except BackendError as error:
            _log.debug("nothing to forget: %s", error)
            return
        self._reads.lost(gone.instance, f"the process at {gone.address} has ended")
        self._calls.drop(gone.address)
        with self._lock:
            links = self._links
        if links is not None:
            links.drop(gone.instance)

    def close(self) -> None:
        """Stop serving, abort every read, join every thread. May be called twice."""
        with self._lock:
            self._reads.close()
            server = self._server
        fenced = self._reads.abort_all()
        if server is not None:
            server.close()
        # A thread that the fence could not stop ends by its own deadline; do not wait for that.
        self._threads.shutdown(wait=fenced)
        if self._links is not None:
            self._links.close()
        self._calls.close()
        if self._agent is not None:
            self._agent.end()

    def _described(self, pool: Pool, metadata: bytes, port: int) -> bytes:
        regions, options = pool.regions, self._options
        return encode(
            PeerDescription(
                protocol=PROTOCOL,
                address=options.advertise or join_address(options.listen_host, port),
                instance=self._instance,
                host=self._host,
                rdma=self._rdma,
                kind=regions.kind,
                device=regions.device,
                blocks=regions.blocks,
                spans=tuple((s.address, s.stride, s.length) for s in regions.spans),
                slot_bytes=pool.chunk_max_bytes,
                metadata=metadata,
            )
        )

    def _registered(self) -> tuple[Pool, Links]:
        if self._pool is None or self._links is None:
            raise BackendError("no regions are registered; call register() first")
        return self._pool, self._links
