"""The ``kvferry`` command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from kvferry.cli import (
    advise,
    audit,
    bench,
    coordinator,
    diff,
    doctor,
    draining,
    events,
    explain,
    export,
    importing,
    keeping,
    plugins,
    policy,
    replay,
    status,
    top,
    up,
    version,
    whatif,
)

RUN, LOOK, STEER = "Run", "Look", "Steer"
HELP = """Carries KV cache between LLM engines, both ways, and keeps a ledger of every move.

Start with `kvferry up`, give its output to your vLLM servers, then look with `kvferry status`.

The ledger's url comes from --nats, KVFERRY_NATS, or a running `kvferry up`. Who we are to the \
server comes from KVFERRY_NATS_USER and KVFERRY_NATS_PASSWORD, KVFERRY_NATS_TOKEN, \
KVFERRY_NATS_NKEY_FILE or KVFERRY_NATS_CREDS_FILE; TLS from KVFERRY_NATS_TLS_CA, \
KVFERRY_NATS_TLS_CERT and KVFERRY_NATS_TLS_KEY.

Exit codes: 0 all is well, 1 found trouble, 2 wrong usage, 3 the ledger cannot be used.
"""

app = typer.Typer(
    name="kvferry",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"kvferry {version.installed('kvferry')}")
        raise typer.Exit


@app.callback()
def configure(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            envvar="KVFERRY_DEBUG",
            help="Log everything on stderr, and show tracebacks of errors.",
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version of kvferry.",
        ),
    ] = False,
) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kvferry").setLevel(logging.DEBUG if debug else logging.NOTSET)


app.command("up", rich_help_panel=RUN)(up.command)
app.command("coordinator", rich_help_panel=RUN)(coordinator.command)
app.command("router", rich_help_panel=RUN, context_settings=plugins.PASS_ON)(
    plugins.passing(
        "router",
        "router",
        "Serve an OpenAI-compatible API in front of prefill and decode engines.",
    )
)
app.command("demo", rich_help_panel=RUN, context_settings=plugins.PASS_ON)(
    plugins.passing(
        "demo",
        "embedded,router",
        "Show two engines that pull each other's KV, on this machine.",
    )
)
app.command("tilert-node", rich_help_panel=RUN, context_settings=plugins.PASS_ON)(
    plugins.passing(
        "tilert-node",
        "tilert",
        "Run a TileRT decode server that keeps what it generates.",
    )
)
app.command("status", rich_help_panel=LOOK)(status.command)
app.command("top", rich_help_panel=LOOK)(top.command)
app.command("events", rich_help_panel=LOOK)(events.command)
app.command("explain", rich_help_panel=LOOK)(explain.command)
app.command("replay", rich_help_panel=LOOK)(replay.command)
app.command("diff", cls=diff.PointsCommand, rich_help_panel=LOOK)(diff.command)
app.command("audit", rich_help_panel=LOOK)(audit.command)
app.command("whatif", rich_help_panel=LOOK)(whatif.command)
app.command("advise", rich_help_panel=LOOK)(advise.command)
app.command("export", rich_help_panel=LOOK)(export.command)
app.command("import", rich_help_panel=LOOK)(importing.command)
app.command("doctor", rich_help_panel=LOOK)(doctor.command)
app.add_typer(bench.app, name="bench", rich_help_panel=LOOK)
app.command("version", rich_help_panel=LOOK)(version.command)
app.command("pause", rich_help_panel=STEER)(policy.pause)
app.command("resume", rich_help_panel=STEER)(policy.resume)
app.command("observe", rich_help_panel=STEER)(policy.observe)
app.command("policy", rich_help_panel=STEER)(keeping.command)
app.command("drain", rich_help_panel=STEER)(draining.drain)
app.command("undrain", rich_help_panel=STEER)(draining.undrain)


def main() -> None:
    """Entry point of the ``kvferry`` script."""
    app()
