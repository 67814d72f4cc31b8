"""Fold, ask every node what it holds, fold on to the place of each answer, and compare there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from kvferry.core.messages import Holdings
from kvferry.core.state import FENCED, JOINED, LEFT, State
from kvferry.ports.log import FACTS_STREAM, BusPort, LogPort
from kvferry.replay.audit.finding import Finding
from kvferry.replay.audit.live.asking import ask
from kvferry.replay.audit.live.comparing import Difference, doubts
from kvferry.replay.audit.live.round import Name, Round
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import between, closing
from kvferry.replay.step import step

LIVE = "live"
"""The invariant: what the ledger says that a node holds, it holds."""
ROUNDS_MAX = 4
ROUND_PAUSE_S = 1.0
"""Between two rounds. What an engine did is in its record by then: its agent looks ten times a
second at the least."""
CATCH_UP_S = 10.0
"""For which one round waits until the ledger has stored what answers are about."""
LOOK_S = 0.1
ASKED_AT_ONCE_MAX = 64


class LiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking the nodes."""

    position: int
    """Stream sequence of the facts that the last comparison stood at."""
    asked: int
    """Nodes that are joined, and those that were given up and answered all the same."""
    agreed: tuple[str, ...]
    """Nodes of which the ledger's view is what they hold, block for block."""
    silent: tuple[str, ...]
    """Nodes that are joined and did not answer; no violation by itself."""
    undecided: tuple[str, ...]
    """Nodes whose answer could not be compared within the bounds, each with the reason."""
    offers: int
    """Offers and leases that were compared."""
    lent_blocks: int
    """Blocks of these that engines said, of their own memory, that they are there."""
    findings: tuple[Finding, ...]


class LiveAudit:
    """One audit of all nodes that live."""

    def __init__(self, log: LogPort, bus: BusPort) -> None:
        self._log = log
        self._bus = bus
        self._state = State()
        self._findings: list[Finding] = []
        self._agreed: list[str] = []
        self._silent: list[str] = []
        self._quiet: set[Name] = set()
        self._heard: set[Name] = set()
        self._why: dict[Name, str] = {}
        self._doubts: dict[Name, set[Difference]] = {}
        self._offers = 0
        self._lent = 0

    async def run(self, progress: Progress | None = None) -> LiveReport:
        """Ask and compare, in as many rounds as it takes within :data:`ROUNDS_MAX`.

        Raises:
            LedgerUnavailable: the log does not answer.
        """
        self._state = await fold_to(self._log, progress=progress)
        open_now = self._to_ask()
        expected = {name for name in open_now if self._expected(name)}
        for number in range(ROUNDS_MAX):
            if number:
                await asyncio.sleep(ROUND_PAUSE_S)
            open_now = await self._round(open_now, last=number == ROUNDS_MAX - 1)
            if not open_now:
                break
        return LiveReport(
            position=self._state.position,
            asked=len(expected | self._heard),
            agreed=tuple(sorted(self._agreed)),
            silent=tuple(sorted(self._silent)),
            undecided=tuple(f"{name[1]}: {why}" for name, why in sorted(self._why.items())),
            offers=self._offers,
            lent_blocks=self._lent,
            findings=tuple(self._findings),
        )

    def _to_ask(self) -> list[Name]:
        """Nodes of the ledger that may live; one that was given up may have come back."""
        return [
            (space, node.name)
            for space, known in sorted(self._state.spaces.items())
            for node in known.nodes.values()
            if node.status in (JOINED, FENCED, LEFT)
        ]

    async def _round(self, names: list[Name], *, last: bool) -> list[Name]:
        """Ask these nodes once; returns those that have to be asked again."""
        await self._fold_on()
        answers = await self._answers(names)
        round_ = Round(self._state, answers)
        round_.begin()
        await self._until_there(round_)
        again = [name for name in names if name not in answers and self._ask_again(name, last)]
        for name in answers:
            missed = round_.missed.get(name)
            if missed is not None and missed.broken and last:
                self._differ(name, [Difference(about=name[1], story=missed.why)])
            elif missed is not None:
                self._why[name] = missed.why
                again.append(name)
            elif round_.found[name]:
                self._differ(name, round_.found[name])
            elif not self._lends(name, round_.pages[name], last=last):
                again.append(name)
        return again

    async def _answers(self, names: Iterable[Name]) -> dict[Name, list[Holdings]]:
        gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def one(name: Name) -> tuple[Name, list[Holdings] | None]:
            async with gate:
                return name, await ask(self._bus, *name)

        found: dict[Name, list[Holdings]] = {}
        for name, pages in await asyncio.gather(*(one(name) for name in names)):
            if pages is not None:
                found[name] = pages
        self._heard |= found.keys()
        return found

    def _ask_again(self, name: Name, last: bool) -> bool:
        """Whether a node that did not answer is asked once more: it may have stood still."""
        if not self._expected(name):
            return False
        if name not in self._quiet and not last:
            self._quiet.add(name)
            return True
        self._silent.append(name[1])
        return False

    def _expected(self, name: Name) -> bool:
        """Whether the node has to answer: one that was given up need not live."""
        return self._state.space(name[0]).nodes[name[1]].status in (JOINED, FENCED)

    async def _fold_on(self) -> None:
        """To the present end, without waiting for more."""
        last = (await self._log.bounds(FACTS_STREAM)).last
        first = self._state.position + 1
        async with closing(between(self._log, FACTS_STREAM, first, last)) as messages:
            async for stored in messages:
                step(self._state, stored)

    async def _until_there(self, round_: Round) -> None:
        """Fold message by message, until each answer's place was reached, or for so long."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + CATCH_UP_S
        while not round_.done and clock() < until_s:
            last = (await self._log.bounds(FACTS_STREAM)).last
            first = self._state.position + 1
            if last < first:
                await asyncio.sleep(LOOK_S)
                continue
            async with closing(between(self._log, FACTS_STREAM, first, last)) as messages:
                async for stored in messages:
                    applied = step(self._state, stored)
                    for name in {(one.space, one.node) for one in applied}:
                        round_.look(name)
        round_.give_up()

    def _differ(self, name: Name, found: list[Difference]) -> None:
        self._why.pop(name, None)
        self._findings += [
            Finding(
                invariant=LIVE,
                seq=self._state.position,
                stream=FACTS_STREAM,
                about=one.about,
                story=one.story,
            )
            for one in found
        ]

    def _lends(self, name: Name, pages: list[Holdings], *, last: bool) -> bool:
        """Whether the engine has what its node has recorded; what stays doubtful differs."""
        self._why.pop(name, None)
        space = self._state.space(name[0])
        now = {doubt for page in pages for doubt in doubts(space, page)}
        stays = now & self._doubts.get(name, set())
        if stays:
            self._differ(name, sorted(stays, key=lambda one: one.about))
            return True
        if now and not last:
            self._doubts[name] = now
            return False
        if now:
            self._why[name] = "what its engine holds changed with every answer"
            return True
        self._agreed.append(name[1])
        self._offers += sum(len(page.offers) for page in pages)
        self._lent += sum(max(0, one.lent) for page in pages for one in page.offers)
        return True
