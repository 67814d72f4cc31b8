"""The state file: how other commands find the ledger that a running ``kvferry up`` serves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class UpState(msgspec.Struct, frozen=True, kw_only=True):
    """What ``kvferry up`` writes at start and removes at stop."""

    url: str
    pid: int
    born: str
    """The process's start time as the kernel counts it, so that a reused pid is not believed."""
    store: str
    replica: str = ""


def state_home(env: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_STATE_HOME/kvferry``, by default ``~/.local/state/kvferry``."""
    base = env.get("XDG_STATE_HOME") or ""
    root = Path(base) if base else Path.home() / ".local" / "state"
    return root / "kvferry"


def state_file() -> Path:
    return state_home() / "up.json"


def default_store() -> Path:
    """Where ``up`` keeps its ledger unless it is told otherwise."""
    return state_home() / "ledger"


def process_born(pid: int) -> str:
    """The start time of a living process in clock ticks since boot; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command's name stands in brackets and may hold blanks: count fields after it.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def alive(state: UpState) -> bool:
    """Whether the process that wrote ``state`` still runs."""
    return bool(state.born) and process_born(state.pid) == state.born


def load(path: Path | None = None) -> UpState | None:
    """What a running ``kvferry up`` wrote; None without one, also when it left the file behind."""
    try:
        state = msgspec.json.decode((path or state_file()).read_bytes(), type=UpState)
    except (OSError, msgspec.MsgspecError):
        return None
    return state if alive(state) else None


def write(state: UpState, path: Path | None = None) -> UpState | None:
    """Announce a running ``up``.

    Returns:
        The state of another living ``up`` that owns the file, which is then left alone.
    """
    path = path or state_file()
    other = load(path)
    if other is not None and other.pid != state.pid:
        return other
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{state.pid}")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        draft.chmod(0o600)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return None


def remove(pid: int, path: Path | None = None) -> None:
    """Take the file away if ``pid`` wrote it."""
    path = path or state_file()
    state = load(path)
    if state is not None and state.pid == pid:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
