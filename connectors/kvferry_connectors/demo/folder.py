"""The files of a run: made, kept when they can explain a failure, else removed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry_connectors.demo.errors import DemoError

TEMPORARY_BYTES_MAX = 48
"""Of the folder that temporary ones are made in: a Unix socket's name has at most 107 bytes, and
vLLM's own part of it 37."""


@dataclass(frozen=True)
class RunFolder:
    """Where one run keeps its files.

    Attributes:
        temporary: the ``TMPDIR`` of its processes; elsewhere and short, for vLLM puts Unix
            sockets there, whose names may have 107 bytes, and leaves them behind.
    """

    path: Path
    temporary: Path

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.path / "logs"

    @property
    def key(self) -> Path:
        """The cluster key of this run's engines."""
        return self.path / "cluster.key"

    def log(self, name: str) -> Path:
        """The log file of the process ``name``."""
        return self.logs / f"{name}.log"


@contextmanager
def run_folder(parent: Path, *, keep: bool) -> Iterator[RunFolder]:
    """A new folder below ``parent`` with a cluster key and a place for logs.

    It is removed at the end. With ``keep`` it stays; after an error, but not after an
    interruption, its logs stay. ``parent`` itself goes only if nothing else is in it.

    Raises:
        DemoError: it cannot be made.
    """
    path = parent / f"run-{os.getpid()}"
    try:
        (path / "logs").mkdir(parents=True)
        run = RunFolder(path, Path(tempfile.mkdtemp(prefix="kvferry-", dir=_short())))
        run.key.touch(mode=0o600)
        run.key.write_text(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise DemoError(f"cannot keep files in {parent}: {error}; choose another --dir") from error
    failed = False
    try:
        yield run
    except Exception:
        failed = True
        raise
    finally:
        shutil.rmtree(run.temporary, ignore_errors=True)
        if not keep:
            _remove(path, but="logs" if failed else "")
        with contextlib.suppress(OSError):
            parent.rmdir()


def _short() -> str:
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= TEMPORARY_BYTES_MAX else "/tmp"


def _remove(path: Path, *, but: str) -> None:
    if not but:
        shutil.rmtree(path, ignore_errors=True)
        return
    for entry in path.iterdir():
        if entry.name == but:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
