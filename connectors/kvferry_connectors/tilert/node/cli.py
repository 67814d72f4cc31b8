"""``kvferry tilert-node``, found through the entry-point group ``kvferry.commands``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from kvferry.errors import KVFerryError
from kvferry.node.agent.credentials import nats_credentials
from kvferry_backends.options import parse_assigned
from kvferry_connectors.tilert.node.main import serve
from kvferry_connectors.tilert.node.settings import WITHIN_MS_MAX, NodeOptions

USAGE, INTERRUPTED = 2, 130
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings=PASS_ON)
def command(
    context: typer.Context,
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NAME", help="This node's name in the ledger, as the router has it."
        ),
    ],
    host_tier_bytes: Annotated[
        int,
        typer.Option(
            "--host-tier-bytes",
            min=1,
            help="Memory of this host for the blocks that are kept.",
            show_default=False,
        ),
    ],
    nats: Annotated[
        str,
        typer.Option("--nats", envvar="KVFERRY_NATS", metavar="URL", help="The ledger."),
    ] = "nats://127.0.0.1:4222",
    nats_creds: Annotated[
        str,
        typer.Option(
            "--nats-creds",
            envvar="KVFERRY_NATS_CREDS_FILE",
            metavar="FILE",
            help="A NATS credentials file. Other credentials and TLS come from the variables that "
            "`kvferry --help` names.",
            show_default=False,
        ),
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="file:PATH",
            help="The cluster key, the same as the engines'. Without it: the file that "
            "KVFERRY_KEY_FILE names, else ~/.config/kvferry/cluster.key.",
            show_default=False,
        ),
    ] = "",
    space: Annotated[
        str,
        typer.Option(
            "--space",
            metavar="SPACE",
            help="Keep blocks of this space only (see `kvferry status`). Without it: of the "
            "space that the first prompt comes from.",
            show_default=False,
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option("--host", metavar="HOST", help="Where peers and their reads are served."),
    ] = "127.0.0.1",
    advertise_host: Annotated[
        str,
        typer.Option(
            "--advertise-host",
            metavar="HOST",
            help="The host that other nodes use to reach this one. Without it: --host.",
            show_default=False,
        ),
    ] = "",
    peer_port: Annotated[
        int,
        typer.Option(
            "--peer-port", min=0, max=65535, help="Port of the peer server; 0: a free one."
        ),
    ] = 0,
    backends: Annotated[
        str,
        typer.Option(
            "--backends",
            metavar="NAME,...",
            help="Data planes that serve the blocks, in order of preference: tcp, peer_host, nixl. "
            "Without it: tcp and peer_host.",
            show_default=False,
        ),
    ] = "",
    backend_options: Annotated[
        list[str] | None,
        typer.Option(
            "--backend-options",
            metavar="BACKEND.OPTION=VALUE",
            help="An option of a data plane, as in the connector's backend_options. Repeatable. "
            "tcp.listen_host (without it: --host), tcp.listen_port, tcp.advertise; "
            "tcp.connections, tcp.reads, tcp.timeout_s, tcp.serve_connections, "
            "tcp.serve_transfers, tcp.serve_bytes. TLS, on this node and on the engines alike: "
            "tcp.tls_cert_file, tcp.tls_key_file and tcp.tls_ca_file.",
            show_default=False,
        ),
    ] = None,
    within_ms: Annotated[
        int,
        typer.Option(
            "--return-within-ms",
            min=1,
            max=WITHIN_MS_MAX,
            help="Milliseconds for which the end of an answer may be held up while its rows are "
            "copied out of the engine. What takes longer is not kept.",
        ),
    ] = 500,
    retain_max_ms: Annotated[
        int,
        typer.Option(
            "--retain-max-ms",
            min=0,
            help="Milliseconds for which a request may ask for its blocks to be kept; 0 lets none "
            "ask.",
        ),
    ] = 600_000,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help="TileRT's engines, as its server calls them: tilert or stub. Or MODULE:FACTORY "
            "of another one: called without arguments, it gives an object with TileRT's engine "
            "interface and a method export_rows(first, last).",
        ),
    ] = "tilert",
) -> None:
    """Run a TileRT decode server that keeps what it generates for the next turn's prefill.

    Options that are not listed here go to TileRT's own decode server, which runs unedited in this
    process: --model, --ctrl-port, --http-port, --transport and so on. The prefill engine needs
    KVFerryConnector beside KVFerryTileRTConnector, and the same cluster key.

    Example:

      kvferry tilert-node --node t0 --nats nats://n:4222 --host 10.0.0.7
      --host-tier-bytes 200000000000 --model glm5 --model-weights-dir /models/glm-5
      --transport nixl --max-seq-len 202752

      kvferry tilert-node ... --backends tcp --backend-options tcp.connections=8
      --backend-options tcp.tls_cert_file=/etc/kvferry/node.pem
      --backend-options tcp.tls_key_file=/etc/kvferry/node.key
      --backend-options tcp.tls_ca_file=/etc/kvferry/ca.pem
    """
    logging.getLogger("kvferry").setLevel(
        min(logging.INFO, logging.getLogger("kvferry").getEffectiveLevel())
    )
    options = NodeOptions(
        node=node,
        nats_url=nats,
        nats_credentials=nats_credentials(os.environ, nats_creds),
        key=key,
        space=space,
        host_tier_bytes=host_tier_bytes,
        within_ms=within_ms,
        retain_max_ms=retain_max_ms,
        host=host,
        advertise_host=advertise_host,
        peer_port=peer_port,
        backends=tuple(name.strip() for name in backends.split(",") if name.strip()),
        backend_options=parse_assigned("--backend-options", backend_options or ()),
    )
    # The server in TileRT's main gives a signal on once it has ended; the node ends cleanly then.
    signal.signal(signal.SIGTERM, _end)
    serve(options, engine, context.args)


def run(argv: Sequence[str]) -> int:
    """Run the command in this process, without the command line around it; the exit code."""
    try:
        app(args=list(argv), prog_name="python -m kvferry_connectors.tilert.node")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KVFerryError as error:
        sys.stderr.write(f"error: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
