"""What does not go as usual: a full pool, a drained node, a killed one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kvferry.core.events import TurnEnded
from kvferry.core.slots import ABANDONED
from kvferry_connectors.demo.client import Answer, Refused
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.texts import Conversation, text
from kvferry_connectors.demo.tilert.asking import OR_NATIVE, POOL, Asker
from kvferry_connectors.demo.tilert.figures import PoolCase
from kvferry_connectors.demo.tilert.records import last_lease
from kvferry_connectors.demo.tilert.settings import NODES
from kvferry_connectors.demo.tilert.stack import TilertStack

BUSY = 429
SHORT = 97


class Cases:
    """The cases in order. Each leaves its figures in :attr:`figures`."""

    def __init__(self, stack: TilertStack, asker: Asker) -> None:
        self._stack = stack
        self._asker = asker
        self._kept: dict[str, int] = {}
        """Tokens of the last conversation that each node has kept."""
        self.figures: list[PoolCase] = []

    async def full(self) -> None:
        """Both nodes generate; one more request is told to come later, or decoded natively."""
        stack = self._stack
        for node in stack.nodes.values():
            node.pause()
        with stack.screen.doing("a pool that is full"):
            held = [asyncio.create_task(self._plain(f"held{n}", POOL)) for n in range(len(NODES))]
            try:
                for node in stack.nodes.values():
                    await node.wait_decoding()
                refused = await self._refused()
                native = await self._plain("native", OR_NATIVE)
            finally:
                for node in stack.nodes.values():
                    node.resume()
                answers = await asyncio.gather(*held, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self._add(
            "a full pool, no other decode wanted",
            f"{refused.status}, Retry-After {refused.retry_after_s} s" if refused else "an answer",
            "429 with Retry-After",
            refused is not None and refused.status == BUSY and refused.retry_after_s > 0,
            refused.request if refused else "",
        )
        self._add(
            "a full pool, native decode welcome",
            native.line,
            "pool=native why=full",
            native.line.endswith("pool=native why=full"),
            native.request,
        )

    async def drain(self, conversation: Conversation) -> None:
        """The node that holds the conversation is drained: another one decodes, from its KV."""
        stack, settings = self._stack, self._stack.settings
        with stack.screen.doing("a drained node"):
            first = await self._asker.turn(conversation, settings.case_turns[0], stream=True)
            await stack.command("drain", first.node)
            turn = await self._asker.turn(conversation, settings.case_turns[1], stream=True)
            await stack.command("undrain", first.node)
        for one in (first, turn):
            self._kept[one.node] = self._asker.kept_tokens(one.prompt_tokens)
        seen = f"decoded by {turn.node}, {turn.pulled_tokens} tokens pulled from {turn.source}"
        self._add(
            f"{first.node} drained between two turns",
            seen,
            f"another node, and the history pulled from {first.node}",
            turn.node != first.node and turn.source == first.node and not turn.problems(),
            turn.request,
        )

    async def kill(self, conversation: Conversation) -> None:
        """A node is killed in mid-answer: the client hears it, and the next turn goes elsewhere."""
        stack, settings = self._stack, self._stack.settings
        victim, other = NODES[1], NODES[0]
        node = stack.nodes[victim]
        await stack.command("drain", other)
        lost = stack.records.incarnation(victim) or ""
        with stack.screen.doing(f"killing {victim} while it answers"):
            node.pause()
            asking = asyncio.create_task(self._broken())
            try:
                await node.wait_decoding()
            finally:
                await node.kill()
                told = await asking
            request, _ = last_lease(stack.records, victim)
            ended = await stack.records.until(
                lambda: self._turn(request), settings.ledger_s, f"the end of {request}"
            )
            await stack.command("undrain", other)
            await stack.records.until(
                lambda: stack.records.left(lost), settings.left_s, f"{victim} being declared gone"
            )
        _, changes = last_lease(stack.records, victim)
        self._add(
            f"{victim} killed in mid-answer",
            f"{told}; turn {ended.outcome}, lease {', '.join(changes)}",
            f"a broken stream, turn error, and the lease {ABANDONED}: the slot is in doubt",
            bool(told) and ended.outcome == "error" and changes[-1:] == (ABANDONED,),
            request,
        )
        with stack.screen.doing("the turn after it"):
            turn = await self._asker.turn(conversation, settings.case_turns[2], stream=True)
        self._add(
            "the turn after it",
            f"decoded by {turn.node}, {turn.pulled_tokens} tokens pulled from {turn.source}",
            f"an answer by {other}, and the {self._kept[other]} tokens that it still has",
            (turn.node, turn.source, turn.pulled_tokens) == (other, other, self._kept[other]),
            turn.request,
        )

    async def _plain(self, seed: str, wishes: Mapping[str, object]) -> Answer:
        stack = self._stack
        prompt = text(seed, SHORT)
        return await stack.router.ask(
            prompt, tokens=stack.settings.answer, stream=False, wishes=wishes
        )

    async def _refused(self) -> Refused | None:
        try:
            await self._plain("refused", POOL)
        except Refused as refused:
            return refused
        return None

    async def _broken(self) -> str:
        """What the client hears of a turn that breaks off; empty if it does not."""
        stack = self._stack
        try:
            await stack.router.ask(
                text("killed", SHORT), tokens=stack.settings.answer, stream=True, wishes=POOL
            )
        except DemoError as error:
            return str(error)
        return ""

    def _turn(self, request: str) -> TurnEnded | None:
        turns = self._stack.records.of(TurnEnded)
        return next((event for _, event in turns if event.request == request), None)

    def _add(self, case: str, seen: str, expected: str, ok: bool, request: str) -> None:
        self.figures.append(PoolCase(case, seen, expected, ok, request))
        self._stack.screen.say(f"{case}: {seen}")
