"""Turns that do not simply continue: an edited history, stripped reasoning, a lost engine."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_connectors.demo.asking import Asked, Asker
from kvferry_connectors.demo.comparison import Comparison
from kvferry_connectors.demo.figures import CaseFigures
from kvferry_connectors.demo.ledgercheck import Counted, counted
from kvferry_connectors.demo.stack import Stack
from kvferry_connectors.demo.texts import Conversation, edited, text
from kvferry_connectors.demo.together import together

ANSWER_AFTER_EDIT = 400
"""Tokens of the new words that follow an edited history."""


class Cases:
    """The cases in order. Each leaves its figures in :attr:`figures`."""

    def __init__(self, stack: Stack, asker: Asker) -> None:
        self._stack = stack
        self._asker = asker
        self._conversation = Conversation("C")
        self._node = ""
        """The decode engine that holds conversation C."""
        self.figures: list[CaseFigures] = []
        self.lost: list[Counted] = []
        """What a killed engine had counted."""

    async def edit(self, conversation: Conversation) -> None:
        """A history whose middle was changed: the prefix before the change is pulled."""
        settings, screen = self._stack.settings, self._stack.screen
        history = conversation.prompts[-2]
        at = settings.edited_at
        changed = edited(history, at, settings.edited_tokens, seed="edit")
        prompt = [*changed, *text("after the edit", ANSWER_AFTER_EDIT)]
        common = at // settings.block * settings.block
        with screen.doing("a history that was edited in the middle"):
            await self._asker.others(conversation.name)
            asked = await self._asker.ask("edited history", prompt, stream=True)
        self._add("edited history", asked, f"the {common} tokens before the edit pulled", common)

    async def strip(self) -> None:
        """An answer whose reasoning was taken out of the history."""
        settings, screen = self._stack.settings, self._stack.screen
        conversation = self._conversation
        first = conversation.ask(settings.case_turns[0])
        with screen.doing("a turn whose reasoning was stripped"):
            await self._asker.others(conversation.name)
            thought = await self._asker.ask(
                "C1 with reasoning",
                first,
                stream=False,
                tokens=settings.reasoning + settings.answer,
            )
            self._asker.done(conversation.name)
            conversation.answered(thought.answer.tokens, stripped=settings.reasoning)
            asked = await self._next(1)
        common = len(first) // settings.block * settings.block
        what = f"the {common} tokens before the reasoning pulled"
        self._add("stripped reasoning", asked, what, common)
        self._node = asked.record.turn.decode_node

    async def restart(self, comparison: Comparison) -> None:
        """The conversation's decode engine is killed and started again between two turns.

        While it starts, on one of the cores, the comparison gets on with its work.
        """
        stack, screen = self._stack, self._stack.screen
        engine = stack.engines[self._node]
        before = stack.records.incarnation(engine.name) or ""
        self.lost.append(await counted(stack, engine))
        with screen.doing(f"killing {engine.name} and starting it again"):
            await engine.kill()
            screen.say(f"{engine.name} was killed")
            await engine.start(stack.nats_url)
            await together(
                stack.wait_joined(engine, before), comparison.catch_up(self._asker.compared)
            )
            await stack.wait_routed()
        with screen.doing("a turn whose history died with its engine"):
            asked = await self._next(2)
        self._check(
            f"{engine.name} killed and restarted",
            asked,
            "miss=node_left, and everything computed again",
            lambda one: (
                one.record.prefill.miss == "node_left" and one.record.prefill.pulled_tokens == 0
            ),
        )
        with screen.doing("the turn after it"):
            asked = await self._next(3)
        self._check(
            "the turn after the restart",
            asked,
            "P pulling again",
            lambda one: one.record.prefill.pulled_tokens > 0,
        )

    async def _next(self, index: int) -> Asked:
        settings = self._stack.settings
        conversation = self._conversation
        prompt = conversation.ask(settings.case_turns[index])
        await self._asker.others(conversation.name)
        asked = await self._asker.ask(f"C{index + 1}", prompt, stream=False)
        self._asker.done(conversation.name)
        conversation.answered(asked.answer.tokens)
        return asked

    def _add(self, case: str, asked: Asked, expected: str, common: int) -> None:
        def as_expected(one: Asked) -> bool:
            prefill = one.record.prefill
            return (
                prefill.pulled_tokens > 0 and prefill.pulled_tokens + prefill.local_tokens == common
            )

        self._check(case, asked, expected, as_expected)

    def _check(
        self, case: str, asked: Asked, expected: str, as_expected: Callable[[Asked], bool]
    ) -> None:
        prefill = asked.record.prefill
        figures = CaseFigures(
            case=case,
            prompt_tokens=prefill.prompt_tokens,
            local_tokens=prefill.local_tokens,
            computed_tokens=prefill.computed_tokens,
            pulled_d_to_p=prefill.pulled_tokens,
            pulled_p_to_d=asked.record.decode.pulled_tokens,
            miss=prefill.miss,
            line=asked.answer.line,
            found_by=asked.record.wanted.basis,
            ttft_ms=asked.answer.ttft_ms,
            request=asked.answer.request,
            expected=expected,
            ok=as_expected(asked),
        )
        self.figures.append(figures)
        self._stack.screen.say(f"{case}: {figures.line}")
