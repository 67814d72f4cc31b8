"""Coordinator processes: the shipped one, over a connection to the simulated ledger."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.kernel.kernel import Kernel, Process
from tests.sim.world.connection import Connection
from tests.sim.world.knobs import Knobs
from tests.sim.world.ledger import LedgerServer

from kvferry.core.digest import digest
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.daemon.slot_timers import AskStatus

DIGEST_EVERY = 40
"""Messages between two digests that are kept to be compared."""


class Replica:
    """One process life of a coordinator.

    Attributes:
        digests: position to digest, of its own fold.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        server: LedgerServer,
        knobs: Knobs,
        life: int,
        ask_status: AskStatus,
    ):
        self._ask_status = ask_status
        self.name, self.kernel, self._server, self._knobs = name, kernel, server, knobs
        self.process = Process(kernel, name)
        self.process.rng.seed(f"{kernel.seed}/{name}/{life}")
        self.coordinator: Coordinator | None = None
        self.digests: dict[int, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        kernel.spawn(self.process, f"{name}:main", self._main)

    def stop(self) -> None:
        """As SIGTERM does."""
        if self._loop is not None and self.coordinator is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.coordinator._stop.set)

    def _main(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._live())

    async def _live(self) -> None:
        connection = Connection(self._server)
        settings = CoordinatorSettings(
            replica=self.name, checkpoint_every_s=self._knobs.checkpoint_s, checkpoints_max=3
        )
        self.coordinator = Coordinator(connection, connection, connection, settings)
        self.coordinator.slot_timers._ask = self._ask_status
        projector: Any = self.coordinator.projector
        shipped = projector.apply

        def apply(stored: Any) -> None:
            shipped(stored)
            if stored.seq % DIGEST_EVERY == 0 and projector.state.position == stored.seq:
                self.digests[stored.seq] = digest(projector.state)

        projector.apply = apply
        await self.coordinator.run()
