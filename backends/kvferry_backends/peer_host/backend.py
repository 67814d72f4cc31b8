"""The peer_host backend as the connectors see it."""

from __future__ import annotations

import ctypes
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize, Capabilities, Posted, ReadRequest, Regions
from kvferry_backends.identity import own_identity
from kvferry_backends.layout import check_regions
from kvferry_backends.open_reads import OpenReads
from kvferry_backends.pairing import check_request
from kvferry_backends.peer_host import system
from kvferry_backends.peer_host.options import parse_options
from kvferry_backends.peer_host.plan import calls
from kvferry_backends.peer_host.reading import HostRead
from kvferry_backends.peer_host.wire import NONCE_BYTES, PROTOCOL, PeerDescription, decode

READS_MAX = 16
"""Reads under way at one time."""

_log = logging.getLogger("kvferry.backends.peer_host")


class PeerHostBackend:
    """Reads blocks out of the host memory of another process of this host.

    One-sided: the source takes no part and cannot refuse, so a read proves nothing until the
    source has answered ``intact``. Blocks carry no digest, for they cross no wire. Both processes
    must be in one pid namespace, and the target be allowed to read the source's memory; each read
    finds that out before it writes a byte, and ends as ``error`` naming the cure.
    """

    name = "peer_host"
    capabilities = Capabilities(
        memory=frozenset({"host"}),
        one_sided=True,
        same_host_only=True,
        fence="call_returned",
    )

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Nothing is shown to anybody before :meth:`register`.

        Raises:
            ConfigError: an option is unknown or out of range.
            BackendUnavailable: this system does not let processes read each other.
        """
        self._options = parse_options(options or {})
        system.check_available()
        self._identity = own_identity()
        self._instance = secrets.token_hex(8)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._shown_nonce = ctypes.create_string_buffer(self._nonce, NONCE_BYTES)
        self._lock = threading.Lock()
        self._reads = OpenReads(self.name, READS_MAX)
        self._threads = ThreadPoolExecutor(
            max_workers=READS_MAX * self._options.threads_per_read,
            thread_name_prefix="kvferry-peer-host-read",
        )
        self._regions: Regions | None = None

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Let these blocks be read from now on. Once in a backend's life.

        ``authorize`` is never called: a reader asks nobody.

        Raises:
            BackendError: the regions are not host memory, no pool of blocks, or memory that
                process_vm_readv cannot read; there are some already; or ``allow_any_reader`` has
                no effect.
        """
        if regions.kind != "host":
            raise BackendError(f"peer_host reads host memory, and the regions are {regions.kind}")
        check_regions(regions)
        for span in regions.spans:
            last = span.address + (regions.blocks - 1) * span.stride + span.length - 1
            for address in (span.address, last):
                system.probe_own(address)
        with self._lock:
            self._reads.check_open()
            if self._regions is not None:
                raise BackendError(
                    "this peer_host backend has its regions; make a new one for another pool"
                )
            self._admit_readers()
            self._regions = regions

    def _admit_readers(self) -> None:
        scope = system.ptrace_scope()
        if scope == 1 and self._options.allow_any_reader:
            system.admit_any_reader()
        elif scope:
            _log.warning(
                "kernel.yama.ptrace_scope is %s: other processes can read our blocks only with "
                "CAP_SYS_PTRACE%s; they will take the next backend",
                scope,
                ", or if peer_host is given allow_any_reader: true" if scope == 1 else "",
            )

    def describe(self) -> bytes:
        """What a peer needs to read from us.

        Raises:
            BackendError: nothing is registered.
        """
        regions = self._registered()
        return msgspec.msgpack.encode(
            PeerDescription(
                protocol=PROTOCOL,
                process=self._identity,
                instance=self._instance,
                nonce_address=ctypes.addressof(self._shown_nonce),
                nonce=self._nonce,
                spans=regions.spans,
                blocks=regions.blocks,
            )
        )

    def post(self, request: ReadRequest) -> Posted:
        """Start a read on threads of our own. Returns at once.

        Raises:
            BackendError: the peer is on another host or in another pid namespace, the request does
                not fit the regions of one of the two sides, or :data:`READS_MAX` reads are under
                way.
        """
        regions = self._registered()
        peer = decode(request.peer)
        self._check_reachable(peer)
        sources, targets = check_request(
            request,
            widths=[span.length for span in regions.spans],
            blocks=regions.blocks,
            peer_widths=[span.length for span in peer.spans],
            peer_blocks=peer.blocks,
        )
        size = len(targets) * regions.block_bytes
        parts = min(self._options.threads_per_read, -(-size // self._options.call_bytes))
        read = HostRead(
            request.transfer,
            peer,
            self._identity,
            calls(regions.spans, peer.spans, targets, sources, self._options.call_bytes),
            parts=parts,
            deadline=time.monotonic() + request.deadline_s,
            on_end=self._reads.drop,
        )
        self._reads.add(read)
        read.start(self._threads, *[read.work] * parts)
        return read

    def forget(self, peer: bytes) -> None:
        """End the reads from a process that has ended. Nothing else is kept of one."""
        try:
            gone = decode(peer)
        except BackendError as error:
            _log.debug("nothing to forget: %s", error)
            return
        self._reads.lost(gone.instance, f"process {gone.process.pid} has ended")

    def close(self) -> None:
        """Show the nonce no more, abort every read, join every thread. May be called twice."""
        with self._lock:
            self._reads.close()
        ctypes.memset(self._shown_nonce, 0, NONCE_BYTES)
        fenced = self._reads.abort_all()
        # A thread that the fence could not stop ends with its call; do not wait for that.
        self._threads.shutdown(wait=fenced)

    def _check_reachable(self, peer: PeerDescription) -> None:
        if peer.process.host != self._identity.host:
            raise BackendError("the peer is on another host; peer_host reaches this one only")
        if peer.process.namespace != self._identity.namespace:
            raise BackendError(
                "the peer is in another pid namespace; let the two containers share one "
                "(docker --pid, Kubernetes shareProcessNamespace) or use another backend"
            )

    def _registered(self) -> Regions:
        if self._regions is None:
            raise BackendError("no regions are registered; call register() first")
        return self._regions
