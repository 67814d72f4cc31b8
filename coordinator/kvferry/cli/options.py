"""The options that most commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "nats://127.0.0.1:4222"

NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="KVFERRY_NATS",
        metavar="URL",
        help="The NATS server that keeps the ledger. Without it: the one of a running "
        f"`kvferry up`, else {DEFAULT_URL}.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Read a file that `kvferry export` wrote, instead of a ledger.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document with stable keys on stdout."),
]
