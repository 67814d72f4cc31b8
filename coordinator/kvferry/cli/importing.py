"""`kvferry import`: an exported file back into a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvferry.cli import guard, render
from kvferry.cli.context import Target, connected, find_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.errors import ConfigError
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.replay.exporting import Imported, import_into


@guard.guarded
def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `kvferry export` wrote.")],
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FOLDER",
            help="Make a ledger of our own there, for `kvferry up --store FOLDER`.",
            show_default=False,
        ),
    ] = None,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append an exported file to an empty ledger.

    To look at a file there is no need for it: all commands that look read it with --file.
    The messages get new sequences and new store times.

    Examples:

      kvferry import monday.kvf --store /tmp/monday
    """
    archive = ArchiveLog(file)
    if archive.needs():
        guard.note(f"note: {archive.needs()}")
    if store is None:
        done = guard.run(_import(archive, find_ledger(nats)))
    else:
        done = _import_to(archive, store)
    for damage in archive.damages:
        guard.note(f"note: {file} at byte {damage.offset}: {damage.what}")
    if as_json:
        print_document(done)
        return
    for stream, count in done.messages.items():
        render.line(f"{stream}: {count:,} messages")


def _import_to(archive: ArchiveLog, store: Path) -> Imported:
    if store.exists() and any(store.iterdir()):
        raise ConfigError(f"{store} is not empty: name a folder that is, or one to be made")
    with EmbeddedServer(store) as server:
        target = Target(server.url, "--store", f"see {store}/nats-server.log")
        return guard.run(_import(archive, target, server))


async def _import(
    archive: ArchiveLog, target: Target, server: EmbeddedServer | None = None
) -> Imported:
    ledger = await connected(target)
    try:
        if server is None:
            await ledger.create_missing()
        else:
            # Limits by the free disk of this machine.
            await ledger.ensure_streams(**msgspec.structs.asdict(server.limits))
        with progress("importing") as report:
            return await import_into(archive, ledger, progress=report, note=guard.note)
    finally:
        await ledger.close()
        await archive.close()
