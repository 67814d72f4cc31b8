"""Asking the coordinator where a prompt's prefix lies."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from kvferry.core.messages import Announce, PlanAnswer, PlanRequest, encode, plan_subject
from kvferry.errors import LedgerError
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.agent.tasks import end_tasks
from kvferry.node.plans.advice import AdviceView
from kvferry.node.plans.hedge import Hedge
from kvferry.node.plans.held import HeldView
from kvferry.node.plans.replicas import Breaker, Replicas
from kvferry.ports.log import BusPort, Reply

logger = logging.getLogger("kvferry.node")

NO_COORDINATOR = "no_coordinator"
PLAN_LATE = "plan_late"
OWN_LATE_S = 0.01
"""Who notices a deadline so much later stood still itself: that says nothing of the replicas."""
LATER_MAX = 1_024
"""Requests that wait for their turn at a time."""

Done = Callable[[PlanAnswer | None, str], None]
"""Called with an answer and ``""``, or with None and ``no_coordinator`` or ``plan_late``."""


class PlanClient:
    """Plans by request and reply, never waited for by an engine thread.

    Engine threads use :meth:`ask` and :meth:`available`; the rest belongs to the agent's thread.

    Attributes:
        advice: what to expect of sessions.
        held: what need not be asked for.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.advice = AdviceView(settings.node)
        self.held = HeldView()
        self._settings = settings
        # Whoever may take long to answer may be silent for as long: a patient node asks it still.
        silent_s = max(settings.replica_silent_s, settings.plan_deadline_ms / 1000)
        self._replicas = Replicas(silent_s)
        self._breaker = Breaker(settings.breaker_failures, settings.breaker_open_s)
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bus: BusPort | None = None
        self._open: set[asyncio.Task[str]] = set()
        self._timers: dict[int, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self._timers_made = 0
        self._decode = msgspec.msgpack.Decoder(PlanAnswer).decode
        self._decode_announce = msgspec.msgpack.Decoder(Announce).decode

    # --- any thread --------------------------------------------------------------------------

    def ask(self, request: PlanRequest, done: Done) -> None:
        """Ask; returns at once.

        ``done`` is called exactly once, on the agent's thread, within ``plan_deadline_ms``.
        Before the agent started and after it stopped it is called at once, by the caller.
        """
        asked_s = time.monotonic()
        with self._gate:
            loop = self._loop
            if loop is not None:
                loop.call_soon_threadsafe(self._begin, request, done, asked_s)
        if loop is None:
            _finish(done, None, NO_COORDINATOR)

    def available(self) -> bool:
        """Whether asking makes sense now: a ledger, a live replica and a closed breaker."""
        bus, now_s = self._bus, time.monotonic()
        return (
            bus is not None
            and bus.connected()
            and self._replicas.any_live(now_s)
            and self._breaker.closed(now_s)
        )

    # --- the agent's thread ------------------------------------------------------------------

    def later(self, after_ms: float, act: Callable[[], None]) -> bool:
        """Call ``act`` on the agent's thread once it is time, and at once when it closes.

        False, and it is never called, where too many wait already.
        """
        loop = self._loop
        if loop is None or len(self._timers) >= LATER_MAX:
            return False
        self._timers_made += 1
        key = self._timers_made
        self._timers[key] = loop.call_later(after_ms / 1000, self._due, key), act
        return True

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept asks from now on."""
        with self._gate:
            self._loop = loop

    def use(self, bus: BusPort | None) -> None:
        """Ask over this bus; None while there is none."""
        self._bus = bus

    async def announced(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """The bus handler for announcements of replicas."""
        try:
            announce = self._decode_announce(data)
        except msgspec.MsgspecError as error:
            logger.debug("an announcement on %s cannot be decoded: %s", subject, error)
            return
        self._replicas.heard(announce.replica, time.monotonic())
        if announce.leader:
            self.held.leader(announce.replica)

    async def close(self) -> None:
        """End every open ask with ``no_coordinator`` and accept no more."""
        with self._gate:
            self._loop = None
        self._bus = None
        for key in list(self._timers):
            self._due(key)
        # Asks that were scheduled before the gate closed begin, and end, in this one round.
        await asyncio.sleep(0)
        await end_tasks(list(self._open))

    # --- inner -------------------------------------------------------------------------------

    def _due(self, key: int) -> None:
        timer, act = self._timers.pop(key)
        timer.cancel()
        try:
            act()
        except Exception:
            logger.exception("asking for a plan again failed; the request recomputes")

    def _begin(self, request: PlanRequest, done: Done, asked_s: float) -> None:
        now_s = time.monotonic()
        deadline_s = asked_s + self._settings.plan_deadline_ms / 1000
        if now_s >= deadline_s:
            _finish(done, None, PLAN_LATE)
            return
        bus = self._bus
        replicas = self._replicas.live(now_s)
        if bus is None or not bus.connected() or not replicas or not self._breaker.enter(now_s):
            _finish(done, None, NO_COORDINATOR)
            return
        if len(self._open) >= self._settings.plans_max:
            self._breaker.abandoned()
            _finish(done, None, PLAN_LATE)
            return
        call = partial(self._call, bus, encode(request), deadline_s)
        hedge = Hedge(call, replicas)
        task = asyncio.get_running_loop().create_task(
            self._plan(hedge, deadline_s), name="kvferry-plan"
        )
        self._open.add(task)
        # The callback also runs for a task that was cancelled before its first step.
        task.add_done_callback(partial(self._ended, hedge, done, now_s, deadline_s))

    async def _plan(self, hedge: Hedge, deadline_s: float) -> str:
        """Run one ask; returns its miss word, empty with an answer."""
        miss = NO_COORDINATOR
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                await hedge.run(self._settings.hedge_ms / 1000)
        except TimeoutError:
            miss = PLAN_LATE
        finally:
            await hedge.close()
        return "" if hedge.answer is not None else miss

    def _ended(
        self, hedge: Hedge, done: Done, begun_s: float, deadline_s: float, task: asyncio.Task[str]
    ) -> None:
        self._open.discard(task)
        if task.cancelled():
            self._breaker.abandoned()
            _finish(done, None, NO_COORDINATOR)
            return
        error = task.exception()
        if error is not None:
            logger.error("a plan failed; the request recomputes", exc_info=error)
        miss = NO_COORDINATOR if error is not None else task.result()
        now_s = time.monotonic()
        if miss:
            if now_s > deadline_s + OWN_LATE_S:
                self._breaker.abandoned()
            else:
                self._breaker.failed(begun_s, now_s)
            _finish(done, None, miss)
        else:
            self._breaker.succeeded()
            _finish(done, hedge.answer, "")

    async def _call(
        self, bus: BusPort, payload: bytes, deadline_s: float, replica: str
    ) -> PlanAnswer | None:
        """One replica's answer; None when it gives none."""
        started_s = time.monotonic()
        answer: PlanAnswer | None = None
        try:
            data = await bus.request(
                plan_subject(replica), payload, max(0.001, deadline_s - started_s)
            )
            answer = self._decode(data)
        except LedgerError as error:
            logger.debug("replica %s gives no plan: %s", replica, error)
        except msgspec.MsgspecError as error:
            logger.warning("replica %s answered a plan that cannot be decoded: %s", replica, error)
        finally:
            # A loser of a hedge comes here cancelled: its slowness counts, and so does a failure.
            took_ms = (time.monotonic() - started_s) * 1000
            if answer is None:
                took_ms = max(took_ms, self._settings.plan_deadline_ms)
            self._replicas.took(replica, took_ms)
        return answer


def _finish(done: Done, answer: PlanAnswer | None, miss: str) -> None:
    try:
        done(answer, miss)
    except Exception:
        # The callback is the connector's; its error must not take other plans with it.
        logger.exception("a plan's callback failed; the request recomputes")
