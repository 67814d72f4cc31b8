"""The ``kvferry`` command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from kvferry.cli.commands import Commands

HELP = """Carries KV cache between LLM engines, both ways, and keeps a ledger of every move.

Start with `kvferry up`, give its output to your vLLM servers, then look with `kvferry status`.

The ledger's url comes from --nats, KVFERRY_NATS, or a running `kvferry up`. Who we are to the \
server comes from KVFERRY_NATS_USER and KVFERRY_NATS_PASSWORD, KVFERRY_NATS_TOKEN, \
KVFERRY_NATS_NKEY_FILE or KVFERRY_NATS_CREDS_FILE; TLS from KVFERRY_NATS_TLS_CA, \
KVFERRY_NATS_TLS_CERT and KVFERRY_NATS_TLS_KEY; KVFERRY_NATS_INBOX_PREFIX names the inbox of a \
user who may listen to one only, as _INBOX.r0.

Exit codes: 0 all is well, 1 found trouble, 2 wrong usage, 3 the ledger cannot be used.
"""

app = typer.Typer(
    name="kvferry",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(value: bool) -> None:
    if value:
        # Only here, as looking up versions takes a fifth of a listing's time.
        from kvferry.cli import version

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


def main() -> None:
    """Entry point of the ``kvferry`` script."""
    app()
