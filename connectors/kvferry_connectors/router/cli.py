"""`kvferry router`, found through the entry-point group ``kvferry.commands``."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from kvferry.errors import ConfigError
from kvferry.node.agent.credentials import nats_credentials
from kvferry_connectors.router.serve import run
from kvferry_connectors.router.settings import RETAIN_S_MAX, RouterSettings, parse_engines
from kvferry_connectors.router.tilert.settings import TilertSettings, parse_nodes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    prefill: Annotated[
        list[str],
        typer.Option(
            "--prefill",
            metavar="[NAME=]URL",
            help="A prefill engine's OpenAI server, as p0=http://10.0.0.1:8100. Repeatable; "
            "bare URLs are called p0, p1 and so on.",
        ),
    ],
    decode: Annotated[
        list[str],
        typer.Option(
            "--decode",
            metavar="[NAME=]URL",
            help="A decode engine's OpenAI server. Repeatable; bare URLs are called d0, d1 "
            "and so on.",
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0: a free one.")
    ] = 8000,
    nats: Annotated[
        str,
        typer.Option(
            "--nats",
            envvar="KVFERRY_NATS",
            metavar="URL",
            help="Where turns are recorded. Without it: the ledger of a running `kvferry up`, "
            "else nowhere. Credentials and TLS come from the variables that `kvferry --help` "
            "names; without a ledger that lets it in, the router serves all the same.",
            show_default=False,
        ),
    ] = "",
    node: Annotated[
        str,
        typer.Option("--node", metavar="NODE", help="This router's own name in the ledger."),
    ] = "router",
    engine_api_key: Annotated[
        str,
        typer.Option(
            "--engine-api-key",
            envvar="KVFERRY_ENGINE_API_KEY",
            metavar="KEY",
            help="Sent to the engines instead of what the client sent.",
            show_default=False,
        ),
    ] = "",
    tilert: Annotated[
        list[str] | None,
        typer.Option(
            "--tilert",
            metavar="NAME=URL[,ctrl=PORT]",
            help="A TileRT decode node for requests that ask for it, as "
            "t0=http://10.0.0.7:5557,ctrl=5556. Repeatable. More keys: profile=glm5, and "
            "idle_limit_s=120 where its limits were raised. Every router must give a node the "
            "same name. Needs a ledger and --tokenizer.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help="The model's tokenizer.json or the folder that holds it: makes text of TileRT's "
            "token ids. Sampling defaults are read from a generation_config.json beside it.",
            show_default=False,
        ),
    ] = "",
    tilert_waiting_max: Annotated[
        int,
        typer.Option(
            "--tilert-waiting-max",
            min=1,
            help="Requests that may wait for a TileRT node; one more is answered 429.",
        ),
    ] = 64,
    tilert_wait_max_s: Annotated[
        float,
        typer.Option(
            "--tilert-wait-max-s",
            min=0.1,
            help="Seconds that a request waits for a TileRT node before it is answered 429.",
        ),
    ] = 30.0,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap/--no-overlap",
            help="Send a turn to P and D at the same time, so that D pulls while P still computes.",
        ),
    ] = False,
    retain_max_s: Annotated[
        float,
        typer.Option(
            "--retain-max-s",
            min=0.0,
            max=RETAIN_S_MAX,
            help="Seconds for which a client may ask that its session's KV is kept; 0: none may.",
        ),
    ] = 600.0,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-s", min=0.0, help="Seconds that a stopping router waits for open requests."
        ),
    ] = 30.0,
) -> None:
    """Serve an OpenAI-compatible API in front of prefill and decode engines.

    Conversations stay with the decode engine that holds their KV, and hints never leave the
    house. Stops cleanly on Ctrl-C or SIGTERM.

    A request is decoded by TileRT if its body has "kvferry": {"pool": "tilert"}, or its header
    x-kvferry-pool is tilert. With "fallback": true, or x-kvferry-fallback: true, it goes to a
    decode engine where TileRT cannot honour it or has no node free; without, the answer says why.

    Examples:

      kvferry router --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200

      kvferry router --prefill p0=http://a:8000 --decode d0=http://b:8000 --decode d1=http://c:8000

      kvferry router --prefill p0=http://a:8000 --decode d0=http://b:8000
      --tilert t0=http://c:5557,ctrl=5556 --tokenizer /models/glm-5
    """
    if tokenizer and not tilert:
        raise ConfigError("--tokenizer is for TileRT nodes: name them with --tilert")
    settings = RouterSettings(
        prefill=parse_engines(prefill, "p"),
        decode=parse_engines(decode, "d"),
        node=node,
        nats_url=nats,
        nats_credentials=nats_credentials(os.environ) if nats else {},
        engine_api_key=engine_api_key,
        overlap=overlap,
        tilert=TilertSettings(
            nodes=parse_nodes(tilert),
            tokenizer=tokenizer,
            waiting_max=tilert_waiting_max,
            wait_max_s=tilert_wait_max_s,
        )
        if tilert
        else None,
        retain_max_s=retain_max_s,
        drain_s=drain_s,
    )
    logging.getLogger("kvferry").setLevel(
        min(logging.INFO, logging.getLogger("kvferry").getEffectiveLevel())
    )
    run(settings, host, port, ready=lambda url: typer.echo(f"router listens on {url}", err=True))
