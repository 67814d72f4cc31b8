"""What an operator can set, checked by name."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from kvferry.errors import ConfigError
from kvferry_backends.options import convert_options

THREADS_MAX = 16
CALL_BYTES_MIN = 4096
CALL_BYTES_MAX = 1 << 30
_CORES_PER_THREAD = 2
_THREADS_BY_DEFAULT_MAX = 4


class PeerHostOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the peer_host backend."""

    allow_any_reader: bool = False
    """Only matters where ``kernel.yama.ptrace_scope`` is 1: let every process of this user, not
    only our ancestors, read (and trace) this process, from now until it ends."""
    threads: int = 0
    """Threads that copy for one read; 0 takes one for every 2 cores, up to 4."""
    call_bytes: int = 32 * 1024 * 1024
    """Most bytes that one system call moves. An abort waits for the call under way; a call that
    returns has to wait for Python, which can be busy."""

    @property
    def threads_per_read(self) -> int:
        """``threads``, chosen by the cores of this process if it is 0."""
        cores = len(os.sched_getaffinity(0))
        return self.threads or max(1, min(_THREADS_BY_DEFAULT_MAX, cores // _CORES_PER_THREAD))


def parse_options(options: Mapping[str, object]) -> PeerHostOptions:
    """``options`` as checked values.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; the text names it.
    """
    parsed = convert_options("peer_host", options, PeerHostOptions)
    if not 0 <= parsed.threads <= THREADS_MAX:
        raise ConfigError(f"peer_host backend: threads {parsed.threads} is not 0 to {THREADS_MAX}")
    if not CALL_BYTES_MIN <= parsed.call_bytes <= CALL_BYTES_MAX:
        raise ConfigError(
            f"peer_host backend: call_bytes {parsed.call_bytes} is not "
            f"{CALL_BYTES_MIN} to {CALL_BYTES_MAX}"
        )
    return parsed
