"""The files of a run: made, kept when they can explain a failure, else removed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry_connectors.demo.errors import DemoError


@contextmanager
def run_folder(parent: Path, *, keep: bool) -> Iterator[Path]:
    """A new folder below ``parent`` with a cluster key and a place for logs.

    It is removed at the end. With ``keep`` it stays; after a :class:`DemoError` its logs stay.
    ``parent`` itself goes only if nothing else is in it.

    Raises:
        DemoError: it cannot be made.
    """
    run = parent / f"run-{os.getpid()}"
    try:
        (run / "logs").mkdir(parents=True)
        key = run / "cluster.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise DemoError(f"cannot keep files in {parent}: {error}; choose another --dir") from error
    failed = False
    try:
        yield run
    except DemoError:
        failed = True
        raise
    finally:
        if failed and not keep:
            _remove_all_but_logs(run)
        elif not keep:
            shutil.rmtree(run, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()


def _remove_all_but_logs(run: Path) -> None:
    for entry in run.iterdir():
        if entry.name == "logs":
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
