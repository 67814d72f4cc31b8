"""Exit codes, and errors as one or two lines instead of a traceback."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import typer

from kvferry.errors import ConfigError, KVFerryError, LedgerError

OK = 0
TROUBLE = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("kvferry.cli")


def exit_code(error: KVFerryError) -> int:
    """The code that tells a script what kind of trouble this was."""
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, LedgerError):
        return UNREACHABLE
    return TROUBLE


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors end in a line on stderr and an exit code."""

    @functools.wraps(command)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except KVFerryError as error:
            log.debug("the command failed", exc_info=True)
            complain(str(error))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of a pipe (head, less) has seen enough. Python would complain once
            # more when it flushes stdout at exit, so give it somewhere else to flush to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(OK) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("typer", "click"):
                raise  # a usage error, which Typer itself shows
            log.debug("the command failed", exc_info=True)
            complain(
                f"kvferry has a bug here: {type(error).__name__}: {error}. "
                "Run it again as `kvferry --debug ...` and report what it prints."
            )
            raise typer.Exit(TROUBLE) from None

    return safe


def complain(text: str) -> None:
    """One error on stderr."""
    typer.echo(f"error: {text}", err=True)


def note(text: str) -> None:
    """A remark on stderr, so that stdout stays one document."""
    typer.echo(text, err=True)
