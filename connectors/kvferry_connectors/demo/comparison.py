"""Every answer against that of one engine without any transfer."""

from __future__ import annotations

from kvferry_connectors.demo.asking import Compared
from kvferry_connectors.demo.figures import Figures
from kvferry_connectors.demo.reference import Reference


class Comparison:
    """Compares answers in the order in which they were given, each once."""

    def __init__(self, reference: Reference, figures: Figures) -> None:
        self._reference = reference
        self._figures = figures
        self._started = False
        self._known: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        """Prompts that were computed already: both arms of a turn have the same."""

    async def catch_up(self, answers: list[Compared]) -> None:
        """Compare those that came since the last call.

        Raises:
            DemoError: the reference engine cannot be asked.
        """
        if not self._started:
            self._started = True
            await self._reference.start()
            await self._reference.ready()
        for one in answers[self._figures.compared :]:
            key = (one.prompt, len(one.tokens))
            if key not in self._known:
                self._known[key] = await self._reference.answer(*key)
            self._figures.compared += 1
            if self._known[key] != one.tokens:
                self._figures.different.append(one.name)
