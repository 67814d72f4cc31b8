"""Which process this is, and whether another one of this host still lives."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kvferry.errors import BackendUnavailable
from kvferry_backends.pairing import host_id

# Of /proc/<pid>/stat, counted from the state, which follows the name in parentheses.
_STATE_FIELD = 0
_START_FIELD = 19
_ENDED_STATES = ("Z", "X")
"""Its memory is gone; only its parent has not asked how it ended."""


class Identity(msgspec.Struct, frozen=True):
    """A process, for others of its host."""

    host: str
    """The machine since its last boot."""
    namespace: str
    """In which ``pid`` counts."""
    pid: int
    started: int
    """Clock ticks since the boot; the same pid with another start is another process."""


def own_identity() -> Identity:
    """This process.

    Raises:
        BackendUnavailable: ``/proc`` does not tell, or is that of another pid namespace.
    """
    pid = os.getpid()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        seen_as = os.readlink("/proc/self")
    except OSError as error:
        raise BackendUnavailable(f"/proc is needed and cannot be read: {error}") from error
    started = started_at(pid)
    if seen_as != str(pid) or started is None:
        raise BackendUnavailable(
            f"/proc shows this process as {seen_as}, but its pid is {pid}: mount the /proc of its "
            "own pid namespace"
        )
    return Identity(host_id(), namespace, pid, started)


def started_at(pid: int) -> int | None:
    """When the process with this pid started, in clock ticks; None where none of it lives."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE_FIELD] in _ENDED_STATES else int(fields[_START_FIELD])


def lives(process: Identity, ours: Identity) -> bool | None:
    """Whether ``process`` still runs; None where we, who are ``ours``, cannot see it."""
    if (process.host, process.namespace) != (ours.host, ours.namespace):
        return None
    started = started_at(process.pid)
    if started is not None:
        return started == process.started
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        return None  # Another user's, and /proc hides those (hidepid).
    except ProcessLookupError:
        return False
    return False
