"""Drives chunks through a pipe, with an eye on everything that may end a transfer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kvferry_backends.nccl.pipe import Pipe

POLL_S = 0.0002
QUEUED_CHUNKS_MAX = 64
"""Chunks queued on the device at one time. Far below what a CUDA stream takes (about 1,000
calls): a call that found it full would block the whole engine, for it holds the GIL."""
DRAIN_S = 60.0
"""Longest that the fence is waited for. What has not ended by then hangs in the driver."""

Check = Callable[[], None]
"""Raises what must end the transfer: a deadline, an abort, a peer that is gone."""

_log = logging.getLogger("kvferry.backends.nccl")


def settle(pipe: Pipe, check: Check) -> None:
    """Wait until the pipe's last call has been taken.

    Raises:
        PipeError: the communicator failed.
        Exception: whatever ``check`` raises.
    """
    pause = threading.Event()
    while not pipe.settled():
        check()
        pause.wait(POLL_S)


def drive(
    pipe: Pipe,
    chunks: Iterable[tuple[int, int]],
    put: Callable[[int, int], None],
    check: Check,
) -> None:
    """Put each chunk in with ``put(start, stop)`` and return when all have gone through.

    Raises:
        PipeError: the communicator failed.
        Exception: whatever ``put`` and ``check`` raise.
    """
    for start, stop in chunks:
        _until_at_most(QUEUED_CHUNKS_MAX - 1, pipe, check)
        put(start, stop)
        settle(pipe, check)
    _until_at_most(0, pipe, check)
    # To the device, chunks that ended because NCCL failed look like any others.
    settle(pipe, check)


def fence(pipe: Pipe) -> bool:
    """Abort the pipe and give its memory back once nothing of it runs any more.

    Returns:
        Whether that is so. If not, blocks that it had to do with may still change, and its
        memory is not given back.
    """
    pipe.abort()
    pause = threading.Event()
    give_up = time.monotonic() + DRAIN_S
    while not pipe.drained():
        if time.monotonic() > give_up:
            _log.critical(
                "an aborted NCCL communicator still runs after %s s; blocks it was to fill stay "
                "in quarantine; restart this engine",
                DRAIN_S,
            )
            return False
        pause.wait(POLL_S)
    pipe.close()
    return True


def _until_at_most(chunks: int, pipe: Pipe, check: Check) -> None:
    pause = threading.Event()
    while pipe.queued() > chunks:
        check()
        pipe.settled()  # raises what has failed meanwhile
        pause.wait(POLL_S)
