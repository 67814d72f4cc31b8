"""Run a coordinator until a signal, in a process of its own or beside an embedded server."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Annotated

import typer

from kvferry.cli.stopping import StopRequest
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.errors import KVFerryError
from kvferry.ledger.jetstream import JetStreamLedger

log = logging.getLogger("kvferry.cli")
STOP_GRACE_S = 5.0
"""Beyond the coordinator's own bound; then it is cancelled."""
ReplicaOption = Annotated[
    str,
    typer.Option(
        "--replica",
        metavar="NAME",
        help="This coordinator's name among others; by default a new one.",
        show_default=False,
    ),
]
SilentOption = Annotated[
    float,
    typer.Option(
        "--silent-after-s", help="Seconds without a heartbeat until a node counts as gone."
    ),
]
CostOption = Annotated[
    str,
    typer.Option(
        "--cost",
        metavar="learned|off",
        help="Weigh moving against computing by what the ledger has taught, or move whatever is "
        "held. What the leader was started with holds for all coordinators, and stands in the "
        "ledger.",
    ),
]


async def serve_coordinator(
    ledger: JetStreamLedger,
    settings: CoordinatorSettings,
    stop: StopRequest,
    on_started: Callable[[], None],
) -> None:
    """Run until ``stop`` is set, then stop cleanly.

    Raises:
        KVFerryError: the coordinator ended by itself.
    """
    coordinator = Coordinator(ledger, ledger, ledger, settings)
    running = asyncio.create_task(coordinator.run(), name="coordinator")
    stopping = asyncio.create_task(stop.event.wait(), name="stop request")
    settling = asyncio.create_task(_settle(coordinator), name="settle")
    try:
        on_started()
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
            raise KVFerryError("the coordinator ended by itself; its log says why")
    finally:
        stopping.cancel()
        settling.cancel()
        try:
            async with asyncio.timeout(settings.stop_timeout_s + STOP_GRACE_S):
                await coordinator.stop()
        except TimeoutError:
            log.warning("the coordinator does not stop; it is cut off")
            running.cancel()
        await asyncio.gather(running, stopping, settling, return_exceptions=True)


async def _settle(coordinator: Coordinator) -> None:
    """What was folded lives as long as the process. To look through it for garbage again and again
    stops all plans for tens of milliseconds each time."""
    await coordinator.projector.level.wait()
    gc.collect()
    gc.freeze()
