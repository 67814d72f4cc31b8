"""What a coordinator says of itself: to nodes, which ask it for plans, and to the others."""

from __future__ import annotations

import asyncio
import logging

from kvferry.core.applied import Applied
from kvferry.core.events import LeaderElected
from kvferry.core.messages import ANNOUNCE_SUBJECT, REPLICAS_SUBJECT, Announce, encode
from kvferry.daemon.decisions import Decider
from kvferry.daemon.projector import Projector
from kvferry.daemon.standing import Standing
from kvferry.errors import LedgerError
from kvferry.ports.log import BusPort

log = logging.getLogger("kvferry.daemon")


class Announcer:
    """Two paces: coordinators hear each other often, so that a dead leader is missed soon; nodes
    hear seldom, because each message interrupts an engine.

    Attributes:
        listening: set once plans are listened for; nodes hear nothing before that.
    """

    def __init__(
        self,
        bus: BusPort,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        *,
        nodes_every_s: float,
        replicas_every_s: float,
    ) -> None:
        self._bus = bus
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self.listening = asyncio.Event()
        self._nodes_every_s = nodes_every_s
        self._replicas_every_s = replicas_every_s
        projector.observe(self._on_applied)

    async def tell_nodes(self) -> None:
        """Until cancelled; silent until there is something to offer them."""
        while True:
            await self.listening.wait()
            await self._projector.level.wait()
            await self._say(ANNOUNCE_SUBJECT)
            await asyncio.sleep(self._nodes_every_s)

    async def tell_replicas(self) -> None:
        """Until cancelled."""
        while True:
            self._standing.note(self._bus.connected(), self._decider.term())
            if self._projector.loaded:
                await self._say(REPLICAS_SUBJECT)
            await asyncio.sleep(self._replicas_every_s)

    async def tell_all(self) -> None:
        """The lead began or ended here: nobody shall wait for the next turn to hear that."""
        await self._say(REPLICAS_SUBJECT)
        if self.listening.is_set():
            await self._say(ANNOUNCE_SUBJECT)

    async def _say(self, subject: str) -> None:
        if not self._bus.connected():
            return
        message = Announce(
            replica=self._standing.replica,
            term=self._decider.term(),
            leader=self._standing.leading,
            position=self._projector.state.position,
        )
        try:
            await self._bus.publish(subject, encode(message))
        except LedgerError as error:
            log.info("could not announce on %s: %s", subject, error)

    def _on_applied(self, applied: list[Applied]) -> None:
        """Somebody who was elected lives, even if its own word of that has not come yet."""
        if not self._projector.level.is_set():
            return
        for one in applied:
            event = one.entry.event
            if isinstance(event, LeaderElected):
                seq = one.position.stream_seq
                self._standing.heard(
                    Announce(replica=event.replica, term=event.term, leader=True, position=seq)
                )
