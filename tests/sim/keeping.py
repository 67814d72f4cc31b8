"""The ledger of a run as an exported file, for `kvferry` commands to read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from tests.sim.world.world import World

from kvferry.ledger.archive.contents import Range
from kvferry.ledger.subjects import matches
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Stored, StreamBounds
from kvferry.replay.exporting import export


class History:
    """What was stored in a run, with its virtual times; as much of a log as an export reads."""

    def __init__(self, facts: Sequence[Stored], details: Sequence[Stored]) -> None:
        self._streams = {FACTS_STREAM: facts, BLOCKS_STREAM: details}

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        for stored in self._streams[stream]:
            if stored.seq >= start and matches(subject, stored.subject):
                yield stored

    @property
    def ranges(self) -> dict[str, Range]:
        return {name: Range(first=1, last=len(kept)) for name, kept in self._streams.items()}

    async def bounds(self, stream: str) -> StreamBounds:
        kept = self._streams[stream]
        last = kept[-1].seq if kept else 0
        return StreamBounds(first=kept[0].seq if kept else 1, last=last)


class Histories:
    """Collects the histories of runs in one process, if they are wanted."""

    def __init__(self, folder: str) -> None:
        """``folder`` is where :meth:`write` puts the files; empty to keep nothing."""
        self._folder = folder
        self._kept: dict[int, History] = {}

    def of(self, seed: int) -> Callable[[World], None] | None:
        """What to give :func:`tests.sim.run.simulate` as ``look``."""

        def look(world: World) -> None:
            if world.ledger is not None:
                self._kept[seed] = History(world.ledger.history, world.ledger.details)

        return look if self._folder else None

    def write(self, profile: str) -> None:
        """Write what was kept. To be called outside the simulation."""
        for seed, history in self._kept.items():
            path = Path(self._folder) / f"{profile}-{seed}.kvf"
            asyncio.run(export(history, path, history.ranges))  # type: ignore[arg-type]
