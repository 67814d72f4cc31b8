"""The two conversations: each turn with reuse, and the same turn with reuse off."""

from __future__ import annotations

from kvferry_connectors.demo.asking import OFF_SALT, Asked, Asker
from kvferry_connectors.demo.figures import TurnFigures
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import DemoSettings
from kvferry_connectors.demo.texts import Conversation

STREAMED = {"A": True, "B": False}
"""vLLM puts no transfer parameters into streams: after a streamed turn the router has no hint,
and P finds D by a plan; after one that is not streamed P uses D's hint."""


async def hold_conversations(
    asker: Asker, settings: DemoSettings, screen: Screen
) -> tuple[dict[str, Conversation], list[TurnFigures]]:
    """All turns of both conversations, interleaved."""
    conversations = {name: Conversation(name) for name in STREAMED}
    turns = []
    for index, length in enumerate(settings.turns):
        for place, conversation in enumerate(conversations.values()):
            # Which arm goes first alternates, so that neither always finds the machine warmer.
            off_first = (index + place) % 2 == 1
            with screen.doing(f"conversation {conversation.name}, turn {index + 1}"):
                figures = await _turn(asker, conversation, length, off_first=off_first)
            turns.append(figures)
            screen.say(_line(figures))
    return conversations, turns


async def _turn(
    asker: Asker, conversation: Conversation, length: int, *, off_first: bool
) -> TurnFigures:
    name, streamed = conversation.name, STREAMED[conversation.name]
    prompt = conversation.ask(length)
    label = f"{name}{conversation.turn}"
    await asker.others(name)
    asked: dict[bool, Asked] = {}
    for reuse in (False, True) if off_first else (True, False):
        asked[reuse] = await asker.ask(
            label if reuse else f"{label} with reuse off",
            prompt,
            stream=streamed,
            salt="" if reuse else OFF_SALT,
            reuse=reuse,
        )
    asker.done(name)
    on, off = asked[True], asked[False]
    conversation.answered(on.answer.tokens)
    prefill, pulled = on.record.prefill, on.record.prefill.pulled_tokens
    return TurnFigures(
        conversation=name,
        turn=conversation.turn,
        prompt_tokens=prefill.prompt_tokens,
        local_tokens=prefill.local_tokens,
        computed_tokens=prefill.computed_tokens,
        pulled_d_to_p=pulled,
        pulled_p_to_d=on.record.decode.pulled_tokens,
        ttft_ms=on.answer.ttft_ms,
        ttft_off_ms=off.answer.ttft_ms,
        computed_off_tokens=off.record.prefill.computed_tokens,
        source=prefill.source,
        found_by=on.record.wanted.basis if pulled else "",
        streamed=streamed,
        request=on.answer.request,
    )


def _line(turn: TurnFigures) -> str:
    pulled = f"pulled {turn.pulled_d_to_p} from {turn.source}, " if turn.pulled_d_to_p else ""
    return (
        f"{turn.conversation}{turn.turn}: {turn.prompt_tokens} tokens, {pulled}"
        f"computed {turn.computed_tokens}; first token after {turn.ttft_ms:.0f} ms, "
        f"with reuse off {turn.ttft_off_ms:.0f} ms"
    )
