"""The system calls of this backend, through ctypes, which gives up the GIL around each."""

from __future__ import annotations

import ctypes
import errno
import os
from array import array
from pathlib import Path

from kvferry.errors import BackendError, BackendUnavailable

IOV_MAX = 1024
"""Pieces of memory that one call takes on each side."""

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_WORDS_PER_PIECE = 2

_libc = ctypes.CDLL(None, use_errno=True)


class MemoryReadError(BackendError):
    """Another process's memory could not be read.

    Attributes:
        error: the word for it in a ``ReadOutcome``.
    """

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.error = error


def check_available() -> None:
    """Read a byte of this very process, which needs no permission.

    Raises:
        BackendUnavailable: there is no such call here, or it is filtered.
    """
    if not hasattr(_libc, "process_vm_readv") or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise BackendUnavailable("peer_host needs process_vm_readv on a 64-bit Linux")
    byte = ctypes.create_string_buffer(1)
    try:
        probe_own(ctypes.addressof(byte))
    except MemoryReadError as error:
        raise BackendUnavailable(
            f"process_vm_readv does not work here ({error}); allow it in the container's seccomp "
            "profile, or take peer_host out of the list of backends"
        ) from error


def probe_own(address: int) -> None:
    """Show that a byte of our memory can be read by way of process_vm_readv.

    Raises:
        MemoryReadError: it cannot; memory that a device driver maps is such.
    """
    into = ctypes.create_string_buffer(1)
    read_memory(os.getpid(), pieces([ctypes.addressof(into)], [1]), pieces([address], [1]), 1)


def pieces(addresses: list[int], lengths: list[int]) -> array[int]:
    """An array of ``struct iovec``."""
    vectors = array("Q", bytes(8 * _WORDS_PER_PIECE * len(addresses)))
    vectors[0::_WORDS_PER_PIECE] = array("Q", addresses)
    vectors[1::_WORDS_PER_PIECE] = array("Q", lengths)
    return vectors


def read_memory(pid: int, local: array[int], remote: array[int], length: int) -> None:
    """Copy ``length`` bytes, which is what each of the lists holds, out of process ``pid``.

    Raises:
        MemoryReadError: not all could be copied; some may have been.
    """
    count: int = _libc.process_vm_readv(
        ctypes.c_int(pid),
        ctypes.c_void_p(local.buffer_info()[0]),
        ctypes.c_ulong(len(local) // _WORDS_PER_PIECE),
        ctypes.c_void_p(remote.buffer_info()[0]),
        ctypes.c_ulong(len(remote) // _WORDS_PER_PIECE),
        ctypes.c_ulong(0),
    )
    if count == length:
        return
    if count >= 0:
        raise MemoryReadError(
            "error", f"only {count} of {length} bytes of process {pid} could be read"
        )
    code = ctypes.get_errno()
    if code == errno.ESRCH:
        raise MemoryReadError("unreachable", f"process {pid} has ended")
    if code in (errno.EPERM, errno.EACCES):
        raise MemoryReadError("error", f"process {pid} may not be read by us: {_permission_cure()}")
    raise MemoryReadError("error", f"process {pid} cannot be read: {os.strerror(code)}")


def ptrace_scope() -> int:
    """``kernel.yama.ptrace_scope``; 0 where there is no Yama."""
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return 0


def admit_any_reader() -> None:
    """Let each process of this user read this one in spite of ptrace_scope 1.

    Raises:
        BackendError: the kernel refuses.
    """
    none = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(_PR_SET_PTRACER), _PR_SET_PTRACER_ANY, none, none, none) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise BackendError(f"peer_host: allow_any_reader has no effect here ({reason})")


def _permission_cure() -> str:
    scope = ptrace_scope()
    if scope == 1:
        return (
            "kernel.yama.ptrace_scope is 1, so set allow_any_reader: true in the peer's options of "
            "peer_host, or the sysctl to 0, or give us CAP_SYS_PTRACE"
        )
    if scope > 1:
        return f"kernel.yama.ptrace_scope is {scope}; set it to 0, or to 1 with allow_any_reader"
    return "run both as the same user and without file capabilities, or give us CAP_SYS_PTRACE"
