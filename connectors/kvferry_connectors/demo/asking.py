"""Turns through the router, with P's cache emptied before each of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry_connectors.demo.client import Answer
from kvferry_connectors.demo.records import TurnRecord
from kvferry_connectors.demo.stack import Stack
from kvferry_connectors.demo.texts import text

OFF_SALT = "reuse-off"
"""Requests of different salts share no KV, so the turn with reuse off meets nothing of the
same turn with reuse on, neither in P's cache nor in D's."""


@dataclass(frozen=True)
class Compared:
    """An answer that the reference engine must give too."""

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """One turn: what the client saw, and what the ledger says."""

    answer: Answer
    record: TurnRecord


class Asker:
    """Asks turns, and keeps every answer for the comparison at the end."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._fillers = itertools.count()
        self._allocated = 0
        self._turned_over: dict[str, int] = {}
        self.compared: list[Compared] = []

    async def ask(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        stream: bool,
        tokens: int = 0,
        salt: str = "",
        reuse: bool = True,
    ) -> Asked:
        """One turn through the router; returns when its record is complete.

        Args:
            name: of the turn, for people.
            tokens: length of the answer; by default that of the settings.

        Raises:
            DemoError: no answer, or no record of it.
        """
        stack = self._stack
        answer = await stack.router.ask(
            prompt,
            tokens=tokens or stack.settings.answer,
            stream=stream,
            salt=salt,
            reuse=reuse,
        )
        self._allocated += len(prompt)
        self.compared.append(Compared(name, tuple(prompt), answer.tokens))
        record = await stack.records.until(
            lambda: stack.records.record(answer.request),
            stack.settings.ledger_s,
            f"the record of {name} ({answer.request})",
        )
        return Asked(answer, record)

    async def others(self, conversation: str) -> None:
        """Requests of other users before a conversation's turn.

        So many that, with what else was asked since the conversation's last turn, P has
        allocated its whole pool anew, and so has lost that conversation's history.
        """
        settings = self._stack.settings
        since = self._allocated - self._turned_over.get(conversation, -settings.prefill_pool)
        missing = max(settings.filler_least, settings.prefill_pool - since)
        while missing > 0:
            length = min(missing, settings.filler)
            await self._stack.others.fill(text(f"other{next(self._fillers)}", length))
            self._allocated += length
            missing -= length

    def done(self, conversation: str) -> None:
        """The conversation's turn is over: from here on P may lose its history."""
        self._turned_over[conversation] = self._allocated
