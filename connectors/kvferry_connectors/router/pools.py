"""The engines of a pool: which are up, how busy they are, and which one serves next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from kvferry_connectors.router.errors import EngineFailed
from kvferry_connectors.router.settings import EngineUrl

logger = logging.getLogger("kvferry.router")


class Engine:
    """One engine as the router sees it. Used from the event loop only.

    Attributes:
        up: whether it may be chosen.
        why: what is wrong with it while it is down.
        in_flight: requests that it is working on for this router.
        served: requests ever given to it.
        hint: the last that it gave. Whatever blocks it names, it proves to another engine which
            node this is and where; ``None`` before the first, and after it was down.
        probe_now: set to have its health looked at without waiting.
    """

    def __init__(self, where: EngineUrl, pool: str) -> None:
        self.name = where.name
        self.url = where.url
        self.pool = pool
        self.up = True
        self.why = ""
        self.in_flight = 0
        self.served = 0
        self.hint: dict[str, object] | None = None
        self.probe_now = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()

    def mark_up(self) -> None:
        if not self.up:
            logger.info("%s engine %s is up again (%s)", self.pool, self.name, self.url)
        self.up, self.why = True, ""

    def mark_down(self, why: str) -> None:
        """Takes it out of the choice until a probe succeeds, which is asked for at once."""
        if self.up:
            logger.warning(
                "%s engine %s is down: %s; no request goes there until %s/health answers 200",
                self.pool,
                self.name,
                why,
                self.url,
            )
        self.up, self.why = False, why
        self.hint = None  # It may come back as another process.
        self.suspect()

    def suspect(self) -> None:
        """Asks for a probe at once."""
        self.probe_now.set()

    @asynccontextmanager
    async def carry(self) -> AsyncIterator[None]:
        """Counts one request in flight, which :meth:`give_up` can end.

        Raises:
            EngineFailed: the engine was given up.
        """
        self.in_flight += 1
        self.served += 1
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            if limit.expired():
                raise EngineFailed(self.name, f"stopped answering ({self.why})") from error
            raise
        finally:
            self.in_flight -= 1

    def give_up(self) -> int:
        """Ends every request in flight; how many there were."""
        limits, self._limits = self._limits, set()
        now = asyncio.get_running_loop().time()
        for limit in limits:
            limit.reschedule(now)
        return len(limits)


class Pool:
    """Prefill engines or decode engines."""

    def __init__(self, name: str, engines: Sequence[EngineUrl]) -> None:
        self.name = name
        self.engines = [Engine(where, name) for where in engines]

    def pick(self, prefer: str, slack: int, exclude: Collection[str]) -> Engine | None:
        """The preferred engine, or the one with the fewest requests in flight if that has more
        than ``slack`` fewer; ``None`` if none is up."""
        usable = [e for e in self.engines if e.up and e.name not in exclude]
        if not usable:
            return None
        idlest = min(usable, key=lambda engine: (engine.in_flight, engine.served))
        for engine in usable:
            if engine.name == prefer and engine.in_flight <= idlest.in_flight + slack:
                return engine
        return idlest

    def any_up(self) -> bool:
        return any(engine.up for engine in self.engines)

    def states(self, failures: dict[str, str] | None = None) -> str:
        """Each engine with its trouble, for people; ``failures`` are those of one turn."""
        failures = failures or {}
        return ", ".join(f"{e.name}: {failures.get(e.name) or e.why or 'up'}" for e in self.engines)
