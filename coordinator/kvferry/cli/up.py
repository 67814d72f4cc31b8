"""`kvferry up`: an embedded ledger and a coordinator in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvferry.cli import guard, statefile
from kvferry.cli.context import Target, connected
from kvferry.cli.engineconfig import instructions, kv_transfer_config
from kvferry.cli.jsonable import print_line
from kvferry.cli.serving import (
    CostOption,
    ReplicaOption,
    SilentOption,
    serve_coordinator,
)
from kvferry.cli.statefile import UpState
from kvferry.cli.stopping import StopRequest
from kvferry.daemon.serving import run_serving
from kvferry.daemon.settings import CoordinatorSettings, new_replica_name
from kvferry.errors import ConfigError
from kvferry.ledger.embedded import EmbeddedServer

DEFAULT_PORT = 4222
HOST = "127.0.0.1"


@guard.guarded
def command(
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="DIR",
            help="Where the ledger is kept; by default $XDG_STATE_HOME/kvferry/ledger. One `up` "
            "at a time may use it.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="NATS port on 127.0.0.1; 0 takes a free one, which engines must then be told "
            "anew after a restart.",
        ),
    ] = DEFAULT_PORT,
    sync: Annotated[
        str,
        typer.Option(
            "--sync",
            metavar="1s|always",
            help="How often the ledger is forced to disk: an interval, or always.",
        ),
    ] = "1s",
    replica: ReplicaOption = "",
    silent_after_s: SilentOption = 5.0,
    cost: CostOption = "learned",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON line once it serves, instead of text."),
    ] = False,
) -> None:
    """Run a ledger and a coordinator on this machine, for one host.

    Prints what vLLM needs, and tells the other commands where the ledger is. Ctrl-C or SIGTERM
    stops it; the ledger is kept. For several hosts run a NATS server and `kvferry coordinator`.

    Examples:

      kvferry up

      kvferry up --store /var/lib/kvferry --port 4300
    """
    settings = CoordinatorSettings(
        replica=replica or new_replica_name(), silent_after_s=silent_after_s, cost=cost
    )
    if port:
        _check_free(port)
    server = EmbeddedServer(
        store if store is not None else statefile.default_store(), port=port, sync_interval=sync
    )
    run_serving(_serve(server, settings, as_json=as_json))


def _check_free(port: int) -> None:
    """
    Raises:
        ConfigError: somebody listens there; better said now than by nats-server's log.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {HOST}: {os.strerror(error.errno or 0)}. If a NATS server with "
                f"JetStream is there, use it: `kvferry coordinator --nats nats://{HOST}:{port}`; "
                "else choose another --port (0 takes a free one)"
            ) from error


async def _serve(server: EmbeddedServer, settings: CoordinatorSettings, *, as_json: bool) -> None:
    with StopRequest() as stop:
        try:
            await asyncio.to_thread(server.start)
            if not stop.event.is_set():
                await _serve_on(server, settings, stop, as_json=as_json)
        finally:
            statefile.remove(os.getpid())
            # Shielded from a second Ctrl-C: the store must not stay locked behind us.
            await asyncio.shield(asyncio.to_thread(server.close))


async def _serve_on(
    server: EmbeddedServer, settings: CoordinatorSettings, stop: StopRequest, *, as_json: bool
) -> None:
    target = Target(server.url, "this process", f"see {server.store_dir}/nats-server.log")
    ledger = await connected(target, name=settings.replica)
    try:
        await ledger.ensure_streams(**msgspec.structs.asdict(server.limits))
        await serve_coordinator(
            ledger, settings, stop, lambda: _announce(server, settings.replica, as_json=as_json)
        )
        if not as_json:
            guard.note("stopping")
    finally:
        await ledger.close()


def _announce(server: EmbeddedServer, replica: str, *, as_json: bool) -> None:
    """Tell the other commands and the operator that and where it serves."""
    pid = os.getpid()
    state = UpState(
        url=server.url,
        pid=pid,
        born=statefile.process_born(pid),
        store=str(server.store_dir),
        replica=replica,
    )
    other = statefile.write(state)
    if other is not None:
        guard.note(
            f"another `kvferry up` runs (process {other.pid}, {other.url}): other commands find "
            f"that one, so give them --nats {server.url} for this one"
        )
    if as_json:
        print_line(
            {
                "url": server.url,
                "pid": pid,
                "store": str(server.store_dir),
                "replica": replica,
                "kv_transfer_config": kv_transfer_config(server.url, "p0"),
                "env": {"KVFERRY_NATS": server.url},
            }
        )
        return
    typer.echo(f"ledger       {server.url}  (kept in {server.store_dir})")
    typer.echo(f"coordinator  {replica}\n")
    typer.echo(instructions(server.url))
