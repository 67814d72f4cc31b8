"""Files that exist only once they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvferry.errors import ConfigError


@contextmanager
def draft(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it gets its name at the end, and is removed if that is an exception.

    Raises:
        ConfigError: it cannot be written there; says why.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with hidden.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name a file in a folder that exists and that "
            "you may write to"
        ) from error
    finally:
        hidden.unlink(missing_ok=True)


def check_writable(json_file: Path | None) -> None:
    """Whether the figures can be written; asked before minutes of measuring, not after.

    Raises:
        ConfigError: the file cannot be written.
    """
    if json_file is None or str(json_file) == "-":
        return
    try:
        with json_file.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"--json {json_file} cannot be written: {error.strerror}") from error
