"""``kvferry bench link``, found through the entry-point group ``kvferry.benches``."""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from kvferry.errors import ConfigError
from kvferry.files import check_writable
from kvferry.ports.backend import Verify
from kvferry_backends.bench.run import (
    Report,
    document,
    measure,
    new_report,
    one_here,
    two_here,
)
from kvferry_backends.bench.serving import Waiting
from kvferry_backends.bench.settings import (
    Settings,
    check,
    parse_names,
    parse_size,
    parse_sizes,
)
from kvferry_backends.bench.table import Progressing, show
from kvferry_backends.bench.talk import Remote
from kvferry_backends.options import parse_assigned
from kvferry_backends.tcp.options import split_address

INTERRUPTED = 130


def command(
    ctx: typer.Context,
    memory: Annotated[
        str, typer.Option("--memory", metavar="host|cuda", help="Where the blocks lie.")
    ] = "host",
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backends",
            metavar="NAME,...",
            help="Which backends, in which order. Without it: all that are installed.",
        ),
    ] = None,
    block_bytes: Annotated[
        list[str] | None,
        typer.Option(
            "--block-bytes",
            metavar="SIZE,...",
            help="Bytes of a block in one layer, as 16KiB,2MiB. Without it: 4 KiB to 2 MiB.",
        ),
    ] = None,
    layers: Annotated[
        int,
        typer.Option(
            "--layers",
            metavar="N",
            help="Layers of the model; each holds its own piece of every block.",
        ),
    ] = 1,
    pool_bytes: Annotated[
        str,
        typer.Option(
            "--pool-bytes",
            metavar="SIZE",
            help="Size of the pool on each end; one read moves a fourth of it. Without it: "
            "256 MiB in host memory, 1 GiB in cuda memory.",
        ),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="S", help="Reads of one row go on for so long, at least three."
        ),
    ] = 1.0,
    verify: Annotated[
        Verify, typer.Option("--verify", help="Compare blocks by digest while time is taken.")
    ] = Verify.OFF,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="BACKEND.OPTION=VALUE",
            help="An option of a backend on both ends, as tcp.connections=4. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option("--device", min=0, help="CUDA device of this end.", show_default="0"),
    ] = None,
    peer_device: Annotated[
        int | None,
        typer.Option(
            "--peer-device",
            min=0,
            help="CUDA device of end b, where both ends are on this machine.",
            show_default="1",
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Be end b for another host, until Ctrl-C.")
    ] = False,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="IP:PORT",
            help="With --serve: where this host is reached; port 0 takes a free one.",
        ),
    ] = "",
    peer: Annotated[
        str,
        typer.Option(
            "--peer", metavar="IP:PORT", help="Measure against the host that serves there."
        ),
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="file:PATH",
            help="The secret of both hosts, 64 hex digits in a file. Without it: the cluster's "
            "key, as engines find it (KVFERRY_KEY_FILE).",
            show_default=False,
        ),
    ] = "",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the figures there; - for stdout."),
    ] = None,
) -> None:
    """Measure what each backend makes of the link between two processes or two hosts.

    Both directions, blocks scattered and contiguous, beside the raw limit of the same link in
    the same run. Run it before you deploy. Exit code 1: a row failed, or there is none.

    Examples:

      kvferry bench link

      kvferry bench link --memory cuda --device 0 --peer-device 1 --json link.json

      kvferry bench link --serve --listen 10.0.0.7:7300    (on one host)

      kvferry bench link --peer 10.0.0.7:7300              (on the other)
    """
    _check_modes(serve=serve, listen=listen, peer=peer, peer_device=peer_device)
    if serve:
        _serve(listen, _key(ctx, key), device or 0)
        return
    settings = check(
        Settings(
            memory=memory,
            backends=parse_names(backends or ()),
            options=parse_assigned("--option", option or ()),
            block_bytes=parse_sizes("--block-bytes", block_bytes or ()) or Settings().block_bytes,
            layers=layers,
            pool_bytes=parse_size("--pool-bytes", pool_bytes) if pool_bytes else 0,
            seconds=seconds,
            verify=verify,
        )
    )
    if peer:
        ends = one_here(_key(ctx, key), device or 0, peer, _reaching(peer))
    else:
        other = peer_device if peer_device is not None else 1
        ends = two_here(secrets.token_bytes(32), device or 0, other)
    _measure(ends, settings, json_file)


def _check_modes(*, serve: bool, listen: str, peer: str, peer_device: int | None) -> None:
    if serve and peer:
        raise ConfigError("--serve and --peer are the two ends: give one on each host")
    if serve and not listen:
        raise ConfigError("--serve needs --listen IP:PORT, where this host is reached")
    if listen and not serve:
        raise ConfigError("--listen belongs to --serve; the measuring host needs none")
    if peer_device is not None and (serve or peer):
        raise ConfigError("--peer-device is for two ends on one host; give --device on each")


def _key(ctx: typer.Context, option: str) -> bytes:
    """The key of both hosts; how it is found is the caller's affair, as for every command."""
    load: Callable[[str | None], bytes] | None = ctx.obj
    if load is None:
        raise ConfigError("no key can be found: run this as `kvferry bench link`")
    return load(option or None)


def _reaching(peer: str) -> str:
    """Our own address on the way to ``peer``."""
    host, port = split_address(peer)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # Sends nothing: it only looks for a route.
        except OSError as error:
            raise ConfigError(f"there is no route to --peer {peer}: {error}") from error
        return str(probe.getsockname()[0])


def _serve(listen: str, key: bytes, device: int) -> None:
    logging.getLogger("kvferry").setLevel(
        min(logging.INFO, logging.getLogger("kvferry").getEffectiveLevel())
    )
    waiting = Waiting(listen, key, device)
    typer.echo(
        f"waits at {waiting.address}; run on the other host: "
        f"kvferry bench link --peer {waiting.address}",
        err=True,
    )
    try:
        while True:
            waiting.serve_one(lambda who: typer.echo(f"measured by {who}", err=True))
    finally:
        waiting.close()


def _measure(
    ends: AbstractContextManager[dict[str, Remote]], settings: Settings, json_file: Path | None
) -> None:
    check_writable(json_file)
    report = new_report(settings)
    try:
        with Progressing(settings) as progress, ends as both:
            measure(both, settings, next_is=progress.next_is, report=report)
    except KeyboardInterrupt:
        report.ended_early = "interrupted"
    _write(report, json_file)
    if report.ended_early == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if report.failures or report.ended_early or not report.rows:
        raise typer.Exit(1)


def _write(report: Report, json_file: Path | None) -> None:
    text = json.dumps(document(report), indent=2)
    if json_file is not None and str(json_file) == "-":
        typer.echo(text)
        return
    show(report)
    if json_file is not None:
        json_file.write_text(text + "\n")
