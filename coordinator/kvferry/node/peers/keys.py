"""The cluster key: 32 secret bytes that every node of a cluster shares.

Sessions, hints and grants are authenticated with keys derived from it; the key itself never
leaves the process.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from kvferry.errors import ConfigError

log = logging.getLogger("kvferry.keys")

KEY_BYTES = 32
KEY_FILE_ENV = "KVFERRY_KEY_FILE"
_FILE_BYTES_MAX = 4096
_MAKE_ONE = "make one with: (umask 077; openssl rand -hex 32 > FILE)"


def load_key(option: str | None = None, *, env: Mapping[str, str] = os.environ) -> bytes:
    """The cluster key, 32 bytes.

    Taken from ``option`` (``file:<path>`` or ``hex:<64 hex digits>``), else from the file that
    ``KVFERRY_KEY_FILE`` names, else from ``~/.config/kvferry/cluster.key`` (under
    ``XDG_CONFIG_HOME`` where that is set), which is created with mode 0600 if it is missing.
    A key file holds 64 hex digits.

    Raises:
        ConfigError: the option is malformed, a named file is missing, is readable by others or
            does not hold a key, or the default file cannot be created.
    """
    if option is not None:
        kind, _, value = option.partition(":")
        if kind == "hex":
            return _parse(value, "the key option")
        if kind == "file" and value:
            return _read(Path(value).expanduser())
        raise ConfigError(
            "the key option must be 'file:<path>' or 'hex:<64 hex digits>'"
            f"; got one that starts with {kind[:8]!r}"
        )
    named = env.get(KEY_FILE_ENV)
    if named:
        return _read(Path(named).expanduser())
    path = default_key_path(env)
    if not path.exists():
        _create(path)
    return _read(path)


def default_key_path(env: Mapping[str, str] = os.environ) -> Path:
    """Where the key lies when nothing names another place."""
    base = env.get("XDG_CONFIG_HOME")
    home = env.get("HOME") or os.path.expanduser("~")
    return (Path(base) if base else Path(home) / ".config") / "kvferry" / "cluster.key"


def derive(key: bytes, purpose: str, *parts: str) -> bytes:
    """32 bytes that depend on the key, the purpose and every part (HMAC-SHA256).

    Each part is framed by its length, so that ("ab", "c") and ("a", "bc") differ.
    """
    framed = bytearray()
    for part in (purpose, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        framed += len(raw).to_bytes(8, "big")
        framed += raw
    return hmac.digest(key, framed, "sha256")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            _check_private(path, status)
            raw = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read ({error.strerror}); {_MAKE_ONE}"
        ) from error
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    return _parse(text, f"the key file {path}")


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the key file {path} is not a regular file")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"the key file {path} is open to other users (mode {mode:04o}); run: chmod 600 {path}"
        )


def _parse(text: str, what: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{what} must hold {2 * KEY_BYTES} hex digits; {_MAKE_ONE}")
    return key


def _create(path: Path) -> None:
    """Create the key file whole or not at all; of two processes the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            _link(draft, path)
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be created ({error.strerror}); "
            f"set {KEY_FILE_ENV} to a key file, or {_MAKE_ONE}"
        ) from error


def _link(draft: Path, path: Path) -> None:
    """Give the draft its name, unless another process was first: then its key stands."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    log.info("created the cluster key %s; copy it to every host of the cluster", path)
