"""The coordinator: one process that follows the ledger, answers plans and decides."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

from kvferry.core.effects import Effect
from kvferry.core.messages import HEARTBEATS, REPLICAS_SUBJECT, plan_subject, query_subject
from kvferry.core.slots_messages import slots_subject
from kvferry.core.state import COST_LEARNED
from kvferry.daemon.advice import AdviceTeller
from kvferry.daemon.announcing import Announcer
from kvferry.daemon.checkpoints import Checkpoints
from kvferry.daemon.decisions import Decider
from kvferry.daemon.draining import Draining
from kvferry.daemon.held import HeldTeller
from kvferry.daemon.liveness import LAG_MAX_MS, Liveness
from kvferry.daemon.plans import PlanService
from kvferry.daemon.policy import Policies
from kvferry.daemon.projector import Projector
from kvferry.daemon.queries import Queries
from kvferry.daemon.report import live_report
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.daemon.slot_timers import SlotTimers
from kvferry.daemon.slots import SlotService
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.daemon.tasks import Tasks
from kvferry.errors import LedgerError
from kvferry.ports.log import BusPort, Handler, LogPort, ObjectPort

log = logging.getLogger("kvferry.daemon")

SUBSCRIBE_RETRY_S = 1.0


class Coordinator:
    """Run one with ``await coordinator.run()``; end it with ``await coordinator.stop()``.

    Needs nothing but the ledger: all it knows is folded from there. Engines do not depend on it.
    """

    def __init__(
        self,
        log_port: LogPort,
        bus: BusPort,
        objects: ObjectPort,
        settings: CoordinatorSettings | None = None,
    ) -> None:
        self.settings = settings if settings is not None else CoordinatorSettings()
        self.replica = self.settings.replica
        weigh = self.settings.cost == COST_LEARNED
        self.started = time.monotonic()
        self.projector = Projector(log_port, objects)
        self.standing = Standing(self.replica, self.settings.takeover_after_s)
        self.decider = Decider(
            log_port,
            self.projector,
            self.standing,
            self._perform,
            cost=self.settings.cost,
            timeout_s=self.settings.decide_timeout_s,
        )
        self.announcer = Announcer(
            bus,
            self.projector,
            self.standing,
            self.decider,
            nodes_every_s=self.settings.announce_every_s,
            replicas_every_s=self.settings.beat_every_s,
        )
        self.liveness = Liveness(
            self.projector,
            self.standing,
            self.decider,
            bus,
            silent_after_s=self.settings.silent_after_s,
        )
        self.plans = PlanService(self.replica, self.projector, weigh=weigh)
        self.held = HeldTeller(self.replica, self.projector, bus, leads=self.decider.term_in)
        self.advice = AdviceTeller(
            self.replica,
            self.projector,
            bus,
            leads=self.decider.term_in,
            weigh=weigh,
        )
        self.checkpoints = Checkpoints(
            log_port,
            objects,
            self.projector,
            self.standing,
            self.decider,
            keep_max=self.settings.checkpoints_max,
        )
        policies = Policies(
            self.projector,
            self.standing,
            self.decider,
            leader_wait_s=2 * self.settings.takeover_after_s,
        )
        self.slot_timers = SlotTimers(self.projector, self.standing, self.decider)
        self.slots = SlotService(
            log_port, self.projector, self.standing, self.decider, bus, self.slot_timers
        )
        draining = Draining(self.projector, self.decider, policies)
        self.queries = Queries(self.projector, policies, draining, lambda: live_report(self))
        self.tasks = Tasks()
        self.bus = bus
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._unsubscribe: list[Callable[[], Awaitable[None]]] = []

    async def stop(self) -> None:
        """End :meth:`run` and wait for it; that takes at most about ``stop_timeout_s``."""
        self._stop.set()
        await self._ended.wait()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until :meth:`stop`, or with ``handle_signals`` until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT) if handle_signals else ()
        for one in caught:
            loop.add_signal_handler(one, self._stop.set)
        self._ended.clear()
        try:
            self.tasks.start("projector", self.projector.run)
            self.tasks.start("subscriptions", self._subscribe)
            self.tasks.start("announce", self.announcer.tell_nodes)
            self.tasks.start("beat", self.announcer.tell_replicas)
            self.tasks.start("tick", self._tick_always)
            self.tasks.start("held", self.held.run)
            self.tasks.start("advice", self.advice.run)
            self.tasks.start("slots", self.slots.queue.run)
            self.tasks.start("slot-news", self.slots.run)
            self.tasks.start("checkpoints", self._checkpoint_always)
            await self._stop.wait()
        finally:
            try:
                async with asyncio.timeout(self.settings.stop_timeout_s):
                    await self._close()
            except TimeoutError:
                log.warning(
                    "the clean stop took longer than %.1f s and was cut short",
                    self.settings.stop_timeout_s,
                )
            await self.tasks.close()
            for one in caught:
                loop.remove_signal_handler(one)
            self._ended.set()

    async def _subscribe(self) -> None:
        subjects: list[tuple[str, Handler]] = [
            (REPLICAS_SUBJECT, self.standing.handle),
            (HEARTBEATS, self.liveness.handle),
            (query_subject(self.replica), self.queries.handle),
        ]
        await self._listen(subjects)
        # What was said before nobody here could hear.
        self.standing.restart()
        self.liveness.restart()
        # Nodes that knew an earlier process of this name ask at once; from a state that is still
        # being folded they would hear that they have not joined.
        await self.projector.level.wait()
        subjects += [
            (plan_subject(self.replica), self.plans.handle),
            (slots_subject(self.replica), self.slots.handle),
        ]
        await self._listen(subjects)
        self.announcer.listening.set()

    async def _listen(self, subjects: list[tuple[str, Handler]]) -> None:
        """Subscribe to what is not listened to yet, in order."""
        while len(self._unsubscribe) < len(subjects):
            subject, handler = subjects[len(self._unsubscribe)]
            try:
                self._unsubscribe.append(await self.bus.subscribe(subject, handler))
            except LedgerError as error:
                log.warning("cannot listen on %s yet: %s", subject, error)
                await asyncio.sleep(SUBSCRIBE_RETRY_S)

    async def _tick_always(self) -> None:
        while True:
            await self.tick()
            await asyncio.sleep(self.settings.tick_s)

    async def tick(self) -> None:
        """Lag, leadership, silence."""
        if not self.bus.connected():
            await self.liveness.check()
            self.slot_timers.check(connected=False)
            return
        try:
            await self.projector.measure()
        except LedgerError as error:
            log.info("cannot see the ledger's end: %s", error)
            return
        if not self.projector.level.is_set() or self.projector.lag_ms() > LAG_MAX_MS:
            return
        await self._lead_spaces()
        self.slot_timers.check(connected=True)
        await self.liveness.check()

    async def _lead_spaces(self) -> None:
        spaces = self.projector.state.spaces
        fresh = all(not space.leader for space in spaces.values())
        was = self.standing.leading
        if not self.standing.update(self.decider.term(), fresh=fresh):
            return
        if not was:
            self.liveness.restart()
            self.slot_timers.restart()
            await self.announcer.tell_all()
        for name in list(spaces):
            if self.decider.leads(name):
                continue
            try:
                await self.decider.lead(name)
            except (NotLeader, LedgerError) as error:
                log.info("not leading space %s: %s", name, error)

    async def _checkpoint_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.checkpoint_every_s)
            try:
                await self.checkpoints.write()
            except LedgerError as error:
                log.warning("no checkpoint: %s; the next one is tried as usual", error)

    async def _perform(self, effect: Effect) -> None:
        await self.liveness.perform(effect)

    async def _close(self) -> None:
        """The last checkpoint, a goodbye that lets another replica take over at once, silence."""
        try:
            if self.bus.connected():
                await self.checkpoints.write()
        except (LedgerError, NotLeader) as error:
            log.warning("no checkpoint at the stop: %s; the next start folds more", error)
        if self.standing.leading:
            self.standing.leading = False
            await self.announcer.tell_all()
        for unsubscribe in self._unsubscribe:
            await unsubscribe()
        self._unsubscribe.clear()
        await self.queries.close()
        await self.slot_timers.close()
