"""Our own lock on a store: two servers on one directory would both start, and lose messages."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from kvferry.errors import ConfigError, LedgerRefused

LOCK_FILE = "kvferry.lock"
GONE_WAIT_S = 5.0
"""The server of an owner that was killed holds the lock until the kernel has ended it."""
LOOK_EVERY_S = 0.02


def lock_store(store_dir: Path) -> int:
    """Take the store; the descriptor returned holds it until it is closed everywhere.

    A live owner refuses at once. An owner that is gone leaves a server that is about to end, so
    a restart right after a kill waits for that, for :data:`GONE_WAIT_S` at most.

    Raises:
        ConfigError: the directory cannot be used.
        LedgerRefused: somebody else has the store; the text names the process.
    """
    try:
        store_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(store_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the store directory {store_dir} cannot be used: {error.strerror}"
        ) from error
    until = time.monotonic() + GONE_WAIT_S
    while not _taken(descriptor):
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        gone = _gone(holder)
        if gone and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
            continue
        os.close(descriptor)
        if gone:
            raise LedgerRefused(
                f"the store {store_dir} is in use by the server of process {holder}, which is "
                "gone: stop the nats-server that runs on it, or choose another store directory"
            )
        raise LedgerRefused(
            f"the store {store_dir} is in use by process {holder}: stop that one, use "
            "its url, or choose another store directory"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _gone(holder: str) -> bool:
    """Whether the process is known to be gone; one of another user is there."""
    if not holder.isascii() or not holder.isdigit():
        return False
    try:
        os.kill(int(holder), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # It lives, under another user.
    return False
