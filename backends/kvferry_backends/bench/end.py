"""One end of the link: a pool of blocks and the backends over it."""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
import statistics

from kvferry.errors import BackendError
from kvferry.ports.backend import Backend
from kvferry_backends import registry
from kvferry_backends.bench import raw
from kvferry_backends.bench.messages import Measure, Measured, Offer, Open, Opened
from kvferry_backends.bench.pools import Pool, Shape, make_pool
from kvferry_backends.bench.reads import READ_PARTS, Reads
from kvferry_backends.bench.settings import merged
from kvferry_backends.pairing import host_id
from kvferry_backends.tcp.options import join_address


class End:
    """What one process brings to the measurement. Used by one thread at a time.

    ``listen_host`` is the IP address under which the other end reaches this one; ``key`` is a
    secret of both, under which reads are permitted.
    """

    def __init__(self, key: bytes, *, listen_host: str = "127.0.0.1", device: int = 0) -> None:
        self._key = key
        self._listen_host = listen_host
        self._device = device
        self._backends: dict[str, Backend] = {}
        self._pool: Pool | None = None
        self._server: raw.StreamServer | None = None

    def open(self, asked: Open) -> Opened:
        """Make the pool and the backends; those that cannot work are left out with the reason.

        Raises:
            BackendError: there is no such memory, or not enough of it.
            ConfigError: a backend's option is wrong.
        """
        self.shut()
        settings = asked.settings
        shape = Shape(settings.blocks(asked.block_bytes), settings.layers, asked.block_bytes)
        try:
            self._pool = make_pool(settings.memory, shape, asked.seed, self._device)
            left_out = self._start(asked, self._pool)
            token = secrets.token_bytes(raw.TOKEN_BYTES)
            size = shape.blocks // READ_PARTS * self._pool.regions.block_bytes
            self._server = raw.StreamServer(self._listen_host, size, token)
        except BaseException:
            self.shut()
            raise
        return Opened(
            host=host_id(),
            what=f"{platform.node()}, {os.cpu_count()} cores, {self._memory(settings.memory)}",
            device=self._device,
            backends={
                name: Offer(
                    description=backend.describe(),
                    same_host_only=backend.capabilities.same_host_only,
                )
                for name, backend in self._backends.items()
            },
            left_out=left_out,
            raw_address=join_address(self._listen_host, self._server.port),
            raw_token=token,
        )

    def _start(self, asked: Open, pool: Pool) -> dict[str, str]:
        settings = asked.settings
        given = {
            name: merged(
                settings.options,
                name,
                {"listen_host": self._listen_host} if name in registry.LISTENING else {},
            )
            for name in settings.backends
        }
        left_out: dict[str, str] = {}
        for backend in registry.create_usable(settings.backends, given, left_out=left_out):
            # Kept from now on, so that all are closed if one of them fails in another way.
            self._backends[backend.name] = backend
        for backend in list(self._backends.values()):
            try:
                if settings.memory not in backend.capabilities.memory:
                    raise BackendError(f"it moves no {settings.memory} memory")
                backend.register(pool.regions, self._permits)
            except BackendError as error:
                left_out[backend.name] = str(error)
                self._backends.pop(backend.name).close()
        return left_out

    def measure(self, asked: Measure) -> Measured:
        """Read from the other end, and check once that the right bytes came.

        Raises:
            BackendError: a read failed, other bytes came, or the raw limit cannot be measured.
        """
        assert self._pool is not None
        backend = self._backends[asked.backend]
        reads = Reads(backend, self._pool, asked, self._grant)
        checked = reads.check()
        small = reads.small()
        limit = self._raw(asked, reads.size)
        try:
            large, limits = reads.beside(limit)
        finally:
            limit.close()
        return Measured(
            gb_per_s=reads.size / statistics.median(large) / 1e9,
            raw_gb_per_s=reads.size / statistics.median(limits) / 1e9,
            p50_ms=1000 * statistics.median(small),
            p99_ms=1000 * sorted(small)[int(0.99 * (len(small) - 1))],
            reads=len(large),
            bytes_per_read=reads.size,
            checked_blocks=checked,
        )

    def shut(self) -> None:
        """Close all backends, give the pool back. May be called at any time, and again."""
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._pool = None

    # --- inner ------------------------------------------------------------------------------

    def _raw(self, asked: Measure, size: int) -> raw.Raw:
        if asked.raw == "memcpy":
            return raw.MemoryCopy(size)
        if asked.raw == "device_copy":
            return raw.DeviceCopy(size, asked.peer_device, self._device)
        return raw.SocketStream(size, asked.raw_address, asked.raw_token)

    def _grant(self, transfer: str, packed: bytes) -> bytes:
        return hmac.digest(self._key, transfer.encode() + b"\0" + packed, hashlib.sha256)

    def _permits(self, transfer: str, grant: bytes, packed: bytes) -> bool:
        return hmac.compare_digest(grant, self._grant(transfer, packed))

    def _memory(self, kind: str) -> str:
        if kind == "host":
            return "host memory"
        import torch

        return f"{torch.cuda.get_device_name(self._device)} as cuda:{self._device}"
