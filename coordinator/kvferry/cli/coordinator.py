"""`kvferry coordinator`: the coordinator alone, beside a NATS server that somebody else runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from kvferry.cli import guard
from kvferry.cli.context import Target, connected, find_ledger
from kvferry.cli.options import NatsOption
from kvferry.cli.serving import (
    CostOption,
    ReplicaOption,
    SilentOption,
    serve_coordinator,
)
from kvferry.cli.stopping import StopRequest
from kvferry.daemon.serving import run_serving
from kvferry.daemon.settings import CoordinatorSettings, new_replica_name
from kvferry.errors import LedgerUnavailable
from kvferry.ledger.jetstream import JetStreamLedger

log = logging.getLogger("kvferry.cli")
RETRY_S = 1.0
TRY_S = 5.0


@guard.guarded
def command(
    nats: NatsOption = None,
    replica: ReplicaOption = "",
    silent_after_s: SilentOption = 5.0,
    cost: CostOption = "learned",
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait-s", min=0.0, help="Seconds to wait for the NATS server at start, then code 3."
        ),
    ] = 60.0,
    stream_replicas: Annotated[
        int,
        typer.Option(
            "--stream-replicas",
            min=1,
            max=5,
            help="Copies of each stream that has to be created; 3 in production. Streams that "
            "exist are left as they are.",
        ),
    ] = 1,
) -> None:
    """Run a coordinator. Two or more may run: one leads, all answer plans.

    Engines go on serving without it; a new one folds the ledger and knows all. Stops cleanly on
    Ctrl-C or SIGTERM.

    Examples:

      kvferry coordinator --nats nats://10.0.0.7:4222

      kvferry coordinator --nats nats://a:4222,nats://b:4222,nats://c:4222 --stream-replicas 3
    """
    settings = CoordinatorSettings(
        replica=replica or new_replica_name(), silent_after_s=silent_after_s, cost=cost
    )
    logging.getLogger("kvferry").setLevel(
        min(logging.INFO, logging.getLogger("kvferry").getEffectiveLevel())
    )
    run_serving(_serve(find_ledger(nats), settings, wait_s, stream_replicas))


async def _serve(
    target: Target, settings: CoordinatorSettings, wait_s: float, stream_replicas: int
) -> None:
    with StopRequest() as stop:
        ledger = await _patiently(target, settings.replica, wait_s, stream_replicas, stop)
        if ledger is None:
            return
        try:
            await serve_coordinator(
                ledger,
                settings,
                stop,
                lambda: guard.note(f"coordinator {settings.replica} serves {target.shown}"),
            )
        finally:
            await ledger.close()


async def _patiently(
    target: Target, name: str, wait_s: float, stream_replicas: int, stop: StopRequest
) -> JetStreamLedger | None:
    """A ledger that has its streams, within ``wait_s``; None when a signal came first."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    warned = False
    while not stop.event.is_set():
        try:
            return await _opened(target, name, stream_replicas)
        except LedgerUnavailable as error:
            if loop.time() + RETRY_S > until:
                raise
            if not warned:
                log.warning("%s; trying again for %.0f s", error, wait_s)
                warned = True
        try:
            async with asyncio.timeout(RETRY_S):
                await stop.event.wait()
        except TimeoutError:
            continue
    return None


async def _opened(target: Target, name: str, stream_replicas: int) -> JetStreamLedger:
    """One try. While a cluster elects a stream's leader, nobody answers for that stream."""
    ledger = await connected(target, name=name, timeout_s=TRY_S)
    try:
        await ledger.create_missing(stream_replicas)
    except BaseException:
        await ledger.close()
        raise
    return ledger
