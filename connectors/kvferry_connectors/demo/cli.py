"""``kvferry demo``, found through the entry-point group ``kvferry.commands``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kvferry.errors import KVFerryError
from kvferry_connectors.demo.errors import DemoFound, Found
from kvferry_connectors.demo.report import print_figures
from kvferry_connectors.demo.run import cache_folder, check_installed, run_demo
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import DemoSettings

TROUBLE, INTERRUPTED = 1, 130
Work = Callable[[], Coroutine[Any, Any, Found]]
Show = Callable[[Any], None]
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
    tilert: Annotated[
        bool,
        typer.Option(
            "--tilert",
            help="Decode on two nodes that run TileRT's own server with a stub for its engine, "
            "behind one vLLM engine as prefill.",
        ),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the run's files: logs, ledger, key.")
    ] = False,
) -> None:
    """Hold two conversations on engines of this machine, and read in the ledger what KV moved.

    Starts an embedded ledger, a coordinator, one prefill and two decode engines (vLLM on the CPU)
    and a router, all on 127.0.0.1, and stops all of them at its end or on Ctrl-C. Takes a few
    minutes, about 8 GB of memory and two cores. Each turn is asked with reuse and without. Ends
    with code 1 unless every answer is that of one engine without any transfer, and every turn
    after the first pulled its history.

    With --tilert the decode engines are two TileRT nodes, and a vLLM engine for native decode:
    each turn leases a node's slot, prefill writes its KV there, the node keeps what it generates,
    and the next turn's prefill pulls it. TileRT's hardware is not needed, and its engine not
    shown: what takes its place makes up its tokens. Ends with code 1 unless every turn and every
    case went as it should. Needs the tilert wheel, as `make setup-engine` unpacks it.

    Examples:

      kvferry demo

      kvferry demo --json figures.json --keep

      kvferry demo --tilert
    """
    console = Console()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    make = _with_tilert if tilert else _with_engines
    try:
        work, show = make(folder.absolute(), keep, console)
        figures = asyncio.run(_interruptible(work))
    except DemoFound as found:
        _show(console, found.figures, show, json_file)
        typer.echo(f"error: {found}; the logs are in {found.log}", err=True)
        raise typer.Exit(TROUBLE) from None
    except KVFerryError as error:
        log = getattr(error, "log", None)
        typer.echo(f"error: {error}" + (f"\nmore in {log}" if log else ""), err=True)
        raise typer.Exit(TROUBLE) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        typer.echo("interrupted; everything is stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show(console, figures, show, json_file)


def _with_engines(folder: Path, keep: bool, console: Console) -> tuple[Work, Show]:
    check_installed()
    settings = DemoSettings(folder=folder, cache=cache_folder(), keep=keep)
    return (
        lambda: run_demo(settings, Screen(console)),
        lambda figures: print_figures(console, figures, settings),
    )


def _with_tilert(folder: Path, keep: bool, console: Console) -> tuple[Work, Show]:
    from kvferry_connectors.demo.tilert.report import print_pool
    from kvferry_connectors.demo.tilert.run import check_tilert, run_tilert_demo
    from kvferry_connectors.demo.tilert.settings import TilertDemoSettings

    check_installed()
    check_tilert()
    settings = TilertDemoSettings(folder=folder, cache=cache_folder(), keep=keep)
    return (
        lambda: run_tilert_demo(settings, Screen(console)),
        lambda figures: print_pool(console, figures),
    )


def _show(console: Console, figures: Found, show: Show, json_file: Path | None) -> None:
    show(figures)
    if json_file is not None:
        json_file.write_text(json.dumps(figures.document(), indent=2) + "\n")
        console.print(f"figures written to {json_file}")


async def _interruptible(work: Work) -> Found:
    """The demo as a task that a signal cancels, once: stopping is not to be interrupted."""
    task = asyncio.create_task(work(), name="demo")
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
