"""Turns on the pool, and what the ledger says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry_connectors.demo.asking import OFF_SALT
from kvferry_connectors.demo.client import Answer
from kvferry_connectors.demo.texts import Conversation
from kvferry_connectors.demo.tilert.figures import PoolFigures, PoolTurn
from kvferry_connectors.demo.tilert.records import PoolRecord, pool_record
from kvferry_connectors.demo.tilert.stack import TilertStack
from kvferry_connectors.demo.tilert.told import all_told

POOL = {"pool": "tilert"}
OR_NATIVE = {"pool": "tilert", "fallback": True}


@dataclass(frozen=True)
class Asked:
    """One turn: what the client saw, and what the ledger says."""

    answer: Answer
    record: PoolRecord


class Asker:
    """Asks turns, and compares what can be compared."""

    def __init__(self, stack: TilertStack, figures: PoolFigures) -> None:
        self._stack = stack
        self._figures = figures
        self._kept: dict[str, dict[str, int]] = {}
        """Of each conversation the tokens that each node has."""

    async def ask(self, name: str, prompt: Sequence[int], *, stream: bool, session: str) -> Asked:
        """One turn on a TileRT node; returns when its record is complete.

        Raises:
            DemoError: no answer, or no record of it.
        """
        stack = self._stack
        answer = await stack.router.ask(
            prompt,
            tokens=stack.settings.answer,
            stream=stream,
            wishes={**POOL, "session": session},
        )
        record = await stack.records.until(
            lambda: pool_record(stack.records, answer.request),
            stack.settings.ledger_s,
            f"the record of {name} ({answer.request})",
        )
        await all_told(stack.ledger, record.position, stack.settings.ledger_s)
        if record.prefill.computed_tokens == len(prompt):
            await self.compare(name, prompt, answer)
        return Asked(answer, record)

    async def compare(self, name: str, prompt: Sequence[int], answer: Answer) -> None:
        """Prefill computed all of it: so must d0, asked alone, and choose the same token."""
        # Under a salt of its own, so that nobody pulls these blocks from d0 in the turn's place.
        alone = await self._stack.alone.ask(
            prompt,
            tokens=1,
            stream=False,
            salt=OFF_SALT,
            params={"kvferry": {"reuse": "off"}},
        )
        self._figures.compared += 1
        if alone.tokens[:1] != answer.tokens[:1]:
            self._figures.different.append(name)

    def kept_tokens(self, prompt: int) -> int:
        """What a node has of a prompt so long and its answer, in full blocks: the last token was
        drawn and never computed, so it has no KV."""
        settings = self._stack.settings
        return (prompt + settings.answer - 1) // settings.block * settings.block

    async def turn(self, conversation: Conversation, length: int, *, stream: bool) -> PoolTurn:
        """The next turn of a conversation."""
        kept = self._kept.setdefault(conversation.name, {})
        prompt = conversation.ask(length)
        name = f"{conversation.name}{conversation.turn}"
        asked = await self.ask(name, prompt, stream=stream, session=conversation.name)
        conversation.answered(asked.answer.tokens)
        record = asked.record
        prefill, send = record.prefill, record.send
        history = kept.get(prefill.source, max(kept.values(), default=0))
        kept[record.turn.decode_node] = self.kept_tokens(len(prompt))
        return PoolTurn(
            conversation=conversation.name,
            turn=conversation.turn,
            streamed=stream,
            prompt_tokens=prefill.prompt_tokens,
            local_tokens=prefill.local_tokens,
            computed_tokens=prefill.computed_tokens,
            pulled_tokens=prefill.pulled_tokens,
            source=prefill.source,
            found_by=record.wanted.basis if prefill.pulled_tokens else "",
            node=record.turn.decode_node,
            slot_generation=record.granted.fence,
            slot_waited_ms=record.granted.waited_ms,
            slot=record.changes,
            admission=send.generation,
            sent_bytes=send.bytes,
            send_ms=send.total_ms,
            send_failed=send.reason,
            answer_tokens=record.turn.output_tokens,
            returned_blocks=record.kept.kept_blocks,
            not_returned=record.kept.not_kept,
            history_tokens=history,
            ttft_ms=asked.answer.ttft_ms,
            total_ms=record.turn.total_ms,
            request=asked.answer.request,
        )
