"""What a test leaves behind in its own process."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

SOON_S = 20.0
LOOK_S = 0.02


@contextlib.contextmanager
def nothing_stays_open() -> Iterator[None]:
    """At the end no thread is left of those that came within, and soon no descriptor either.

    Soon, not at once: what other tests of this process left running may open a file for a moment.
    What leaks stays.
    """
    threads, descriptors = set(threading.enumerate()), set(open_files())
    yield
    assert set(threading.enumerate()) <= threads
    until = time.monotonic() + SOON_S
    while opened := {at: what for at, what in open_files().items() if at not in descriptors}:
        assert time.monotonic() < until, f"left open: {opened}"
        time.sleep(LOOK_S)


def open_files() -> dict[int, str]:
    """What each descriptor of this process is, without the one that was opened to look."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found
