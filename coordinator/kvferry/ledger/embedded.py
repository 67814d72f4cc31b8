"""A nats-server of our own on loopback, for `kvferry up` and the demo.

All methods are synchronous and thread-safe; from asyncio call them through
``asyncio.to_thread``. One thread starts the server, watches it, and starts it again on the same
port when it died, hung, or was left unusable by a full disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from kvferry.errors import ConfigError, KVFerryError, LedgerRefused, LedgerUnavailable
from kvferry.ledger.server_process import (
    READY_WAIT_S,
    Ports,
    ServerProcess,
    find_binary,
    health,
    write_config,
)
from kvferry.ledger.store_lock import lock_store
from kvferry.ledger.streams import MIB, StreamLimits

_log = logging.getLogger("kvferry.ledger")

CAP_BYTES_MAX = 2048 * MIB
CAP_SHARE_OF_FREE = 0.05
FREE_BYTES_MIN = 512 * MIB
RESTART_FREE_BYTES_MIN = 64 * MIB
"""After a full disk the server is restarted once so much is free again."""
WATCH_EVERY_S = 1.0
UNHEALTHY_MAX = 3
"""Bad answers in a row before the server is restarted."""
SILENT_MAX = 10
"""Missing answers in a row before a hung server is killed."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
SAY_AGAIN_S = 60.0
CLOSE_WAIT_S = 60.0

FreeBytes = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Free space where ``path`` lies."""
    return shutil.disk_usage(path).free


def limits_for(free: int, used: int = 0) -> StreamLimits:
    """Bounds of the streams on a disk with ``free`` bytes, ``used`` of which are ours already.

    Raises:
        LedgerRefused: too little is free.
    """
    if free + used < FREE_BYTES_MIN:
        raise LedgerRefused(
            f"{free // MIB} MiB are free, the ledger needs {FREE_BYTES_MIN // MIB} MiB: free some "
            "space or choose another store directory"
        )
    cap = min(CAP_BYTES_MAX, int((free + used) * CAP_SHARE_OF_FREE))
    return StreamLimits(
        facts_max_bytes=cap * 6 // 10, blocks_max_bytes=cap * 3 // 10, objects_max_bytes=cap // 10
    )


class EmbeddedServer:
    """Use as a context manager, or call :meth:`start` and :meth:`close`.

    Args:
        store_dir: where the ledger lies; created if missing, locked while in use.
        port: the client port on 127.0.0.1; 0 lets the server choose one, which it then keeps.
        sync_interval: how often stored messages are forced to disk, for example ``1s`` or
            ``always``.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        *,
        port: int = 0,
        sync_interval: str = "1s",
        free: FreeBytes = free_bytes,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(f"port {port} is not a port: use 0 to 65535")
        self.store_dir = Path(store_dir).absolute()
        self.limits = StreamLimits()
        """Fit for ``ensure_streams``; known after :meth:`start`."""
        self.restarts = 0
        self._ports = Ports(port or -1, -1)
        self._sync_interval = sync_interval
        self._free = free
        self._lock_fd = -1
        self._process: ServerProcess | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._failure: KVFerryError | None = None

    @property
    def url(self) -> str:
        """For clients; known after :meth:`start`, and the same after every restart."""
        return f"nats://127.0.0.1:{self._ports.client}"

    @property
    def pid(self) -> int | None:
        """Of the present server process."""
        return self._process.pid if self._process else None

    def health(self) -> str:
        """Empty if healthy, else why not."""
        return health(self._ports.monitor)

    def start(self) -> None:
        """Start the server and return once it is healthy.

        Raises:
            ConfigError: there is no nats-server to run, or the directory cannot be used.
            LedgerRefused: the store is in use by another process, or the disk too full.
            LedgerUnavailable: the server does not start; the text has its last words.
        """
        binary = find_binary()
        self._lock_fd = lock_store(self.store_dir)
        try:
            self.limits = limits_for(self._free(self.store_dir), _used_bytes(self.store_dir))
            self._thread = threading.Thread(
                target=self._run, args=(binary,), name="kvferry nats-server", daemon=True
            )
            self._thread.start()
            if not self._started.wait(READY_WAIT_S + CLOSE_WAIT_S):
                raise LedgerUnavailable(f"nats-server of {self.store_dir} hangs while it starts")
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the server, in bounded time, and give the store free. Safe to call again."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)
            self._thread = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- the thread -------------------------------------------------------------------------

    def _run(self, binary: str) -> None:
        try:
            self._launch(binary)
        except KVFerryError as error:
            self._failure = error
        except OSError as error:
            self._failure = LedgerUnavailable(f"nats-server cannot be started: {error}")
        self._started.set()
        if self._failure is None:
            while not self._stopping.is_set():
                why = self._watch()
                if why:
                    self._restart(binary, why)
        if self._process is not None:
            self._process.stop()

    def _launch(self, binary: str) -> None:
        config = write_config(self.store_dir, self._ports, self._sync_interval)
        self._process = ServerProcess(binary, self.store_dir, config, self._lock_fd)
        self._ports = self._process.wait_ready()
        _log.info("nats-server %d serves %s from %s", self._process.pid, self.url, self.store_dir)

    def _watch(self) -> str:
        """Wait until the server needs a restart; why, or nothing when we are to stop."""
        process = self._process
        assert process is not None
        bad = 0
        while not self._stopping.wait(WATCH_EVERY_S):
            if process.exit_code is not None:
                return f"it ended with code {process.exit_code}"
            problem = self.health()
            bad = bad + 1 if problem else 0
            limit = UNHEALTHY_MAX if problem[:1].isdigit() else SILENT_MAX
            if bad >= limit:
                return problem
        return ""

    def _restart(self, binary: str, why: str) -> None:
        process = self._process
        assert process is not None
        said_at = 0.0
        while process.exit_code is None and self._free(self.store_dir) < RESTART_FREE_BYTES_MIN:
            if time.monotonic() - said_at > SAY_AGAIN_S or not said_at:
                said_at = time.monotonic()
                _log.error(
                    "the ledger is stuck (%s) and the disk of %s is full: free at least %d MiB, "
                    "then it goes on by itself",
                    why,
                    self.store_dir,
                    RESTART_FREE_BYTES_MIN // MIB,
                )
            if self._stopping.wait(WATCH_EVERY_S):
                return
        _log.warning("restarting nats-server %d: %s", process.pid, why)
        wait_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            if self._process is not None:
                self._process.stop()
            try:
                self._launch(binary)
            except (KVFerryError, OSError) as error:
                _log.error("nats-server does not start again: %s; trying on", error)
                self._stopping.wait(wait_s)
                wait_s = min(BACKOFF_MAX_S, wait_s * 2)
                continue
            self.restarts += 1
            return


def _used_bytes(store_dir: Path) -> int:
    return sum(
        entry.stat().st_size for entry in (store_dir / "jetstream").rglob("*") if entry.is_file()
    )
