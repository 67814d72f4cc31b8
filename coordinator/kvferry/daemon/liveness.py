"""Heartbeats and silence: who is alive, what they are told, and who is given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from kvferry.core.applied import Applied
from kvferry.core.commands import Heard, NodeSilent
from kvferry.core.effects import Effect, SendControl
from kvferry.core.events import FACTS
from kvferry.core.messages import Control, Heartbeat, control_subject, encode
from kvferry.core.state import FENCED, JOINED
from kvferry.daemon.decisions import Decider
from kvferry.daemon.projector import Projector
from kvferry.daemon.resync import NODES_MAX, Key, ResyncTimer
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import LedgerError
from kvferry.ports.log import BusPort, Reply

log = logging.getLogger("kvferry.daemon")

LAG_MAX_MS = 1_000.0
"""With a state older than this nobody is given up and nobody is asked to begin anew."""

_HEARTBEATS = msgspec.msgpack.Decoder(Heartbeat)


class Life(msgspec.Struct):
    """What was last heard of one node on the bus."""

    heartbeat: Heartbeat
    at: float
    """Monotonic seconds."""


class Liveness:
    """Deadlines of nodes on this process's monotonic clock.

    They begin anew whenever this process could not have heard a heartbeat: when it starts to
    lead, after a lost connection, and after it was stopped itself.
    """

    def __init__(
        self,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        bus: BusPort,
        *,
        silent_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives: dict[Key, Life] = {}
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self._bus = bus
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._since = clock()
        self._checked = clock()
        self._wrote: dict[Key, float] = {}
        self._resync = ResyncTimer(clock)
        projector.observe(self._on_applied)

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One message on ``HEARTBEATS``."""
        try:
            beat = _HEARTBEATS.decode(data)
        except msgspec.DecodeError as error:
            log.warning("a heartbeat on %s cannot be read: %s", subject, error)
            return
        key = (beat.space, beat.node)
        self.lives.pop(key, None)
        self.lives[key] = Life(beat, self._clock())
        if len(self.lives) > NODES_MAX:
            del self.lives[next(iter(self.lives))]
        lagging = self._lagging()
        await self._decider.react(
            Heard(
                space=beat.space,
                node=beat.node,
                incarnation=beat.incarnation,
                epoch=beat.epoch,
                lagging=lagging,
            )
        )
        why = "" if lagging else self._resync.stuck(self._projector.state, beat)
        if why:
            control = Control(verb="resync", why=why, incarnation=beat.incarnation)
            await self.perform(SendControl(space=beat.space, node=beat.node, control=control))

    def restart(self) -> None:
        """Give every node its full time again."""
        self._since = self._clock()

    async def check(self) -> None:
        """Give up the nodes that are silent. Called each tick."""
        now = self._clock()
        stopped = now - self._checked > self._silent_after_s / 2
        self._checked = now
        if stopped or not self._standing.leading or not self._bus.connected():
            self.restart()
            return
        if self._lagging():
            return
        for space_name, space in list(self._projector.state.spaces.items()):
            for node in list(space.nodes.values()):
                if node.status not in (JOINED, FENCED):
                    continue
                silent_s = now - self._last_sign((space_name, node.name), node.incarnation)
                if silent_s > self._silent_after_s:
                    await self._give_up(
                        NodeSilent(
                            space=space_name,
                            node=node.name,
                            incarnation=node.incarnation,
                            epoch=node.epoch,
                            silent_ms=int(silent_s * 1000),
                        )
                    )

    async def perform(self, effect: Effect) -> None:
        """Do what a decision asks for."""
        if not isinstance(effect, SendControl):
            log.error("an effect of kind %s is not known here", type(effect).__name__)
            return
        if not self._standing.leading and effect.control.verb != "resync":
            return  # Only the leader speaks for the space; any replica may lack a node's record.
        if effect.control.verb == "resync" and not self._resync.due((effect.space, effect.node)):
            return
        await self._bus.publish(control_subject(effect.space, effect.node), encode(effect.control))

    def _lagging(self) -> bool:
        return not self._projector.loaded or self._projector.lag_ms() > LAG_MAX_MS

    def _last_sign(self, key: Key, incarnation: str) -> float:
        life = self.lives.get(key)
        heard = life.at if life is not None and life.heartbeat.incarnation == incarnation else 0.0
        return max(self._since, heard, self._wrote.get(key, 0.0))

    async def _give_up(self, command: NodeSilent) -> None:
        try:
            decision = await self._decider.command(command.space, command)
        except NotLeader as error:
            log.info("node %s is silent, but %s", command.node, error)
        except LedgerError as error:
            log.warning("node %s is silent and could not be declared gone: %s", command.node, error)
        else:
            if decision.events:
                log.warning(
                    "node %s of space %s was silent for %.1f s and is declared gone; it rejoins "
                    "by itself when it is heard again",
                    command.node,
                    command.space,
                    command.silent_ms / 1000,
                )

    def _on_applied(self, applied: list[Applied]) -> None:
        """Facts are a sign of life too, and a node that wrote one is in step."""
        if not applied or applied[0].lane != FACTS:
            return
        key = (applied[0].space, applied[0].node)
        self._wrote.pop(key, None)
        self._wrote[key] = self._clock()
        if len(self._wrote) > NODES_MAX:
            del self._wrote[next(iter(self._wrote))]
        self._resync.in_step(key)
