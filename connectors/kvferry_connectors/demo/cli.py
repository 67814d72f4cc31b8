"""``kvferry demo``, found through the entry-point group ``kvferry.commands``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvferry.errors import KVFerryError
from kvferry_connectors.demo.figures import Figures
from kvferry_connectors.demo.report import print_figures
from kvferry_connectors.demo.run import DemoFound, cache_folder, check_installed, run_demo
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import DemoSettings

TROUBLE, INTERRUPTED = 1, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def command(
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the figures to FILE.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Where a run keeps its files; it removes them at its end, but leaves its logs "
            "when something failed.",
        ),
    ] = Path(".demo"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the run's files: logs, ledger, key.")
    ] = False,
) -> None:
    """Hold two conversations on three vLLM engines of this machine, with reuse and without.

    Starts an embedded ledger, a coordinator, one prefill and two decode engines on the CPU and
    a router, all on 127.0.0.1, and stops all of them at its end or on Ctrl-C. Takes a few
    minutes, about 8 GB of memory and two cores. Ends with code 1 unless every answer is that of
    one engine without any transfer, and every turn after the first pulled its history.

    Examples:

      kvferry demo

      kvferry demo --json figures.json --keep
    """
    settings = DemoSettings(folder=folder.absolute(), cache=cache_folder(), keep=keep)
    console = Console()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        check_installed()
        figures = asyncio.run(_interruptible(settings, Screen(console)))
    except DemoFound as found:
        _show(console, found.figures, settings, json_file)
        typer.echo(f"error: {found}; the logs are in {found.log}", err=True)
        raise typer.Exit(TROUBLE) from None
    except KVFerryError as error:
        log = getattr(error, "log", None)
        typer.echo(f"error: {error}" + (f"\nmore in {log}" if log else ""), err=True)
        raise typer.Exit(TROUBLE) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        typer.echo("interrupted; everything is stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show(console, figures, settings, json_file)


def _show(
    console: Console, figures: Figures, settings: DemoSettings, json_file: Path | None
) -> None:
    print_figures(console, figures, settings)
    if json_file is not None:
        json_file.write_text(json.dumps(figures.document(), indent=2) + "\n")
        console.print(f"figures written to {json_file}")


async def _interruptible(settings: DemoSettings, screen: Screen) -> Figures:
    """The demo as a task that a signal cancels, once: stopping is not to be interrupted."""
    task = asyncio.create_task(run_demo(settings, screen), name="demo")
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    finally:
        for number in SIGNALS:
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)
