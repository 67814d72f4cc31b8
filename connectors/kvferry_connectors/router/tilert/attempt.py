"""One attempt of a turn at one node, from the granted slot to its end."""

from __future__ import annotations

import logging

from kvferry.errors import SlotLost, SlotsUnavailable
from kvferry.node.slots import Slot
from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.context import Router
from kvferry_connectors.router.decode import Decoded
from kvferry_connectors.router.errors import Answered, EngineFailed
from kvferry_connectors.router.prefill import Prefilled
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.report import REUSE_LINE_HEADER, reuse_line
from kvferry_connectors.router.sessions import Known
from kvferry_connectors.router.tilert.answer import answer, make_maker
from kvferry_connectors.router.tilert.call import DecodeCall
from kvferry_connectors.router.tilert.first import First, PrefillFailed, first_token
from kvferry_connectors.router.tilert.node import Node, decode_content
from kvferry_connectors.router.tilert.pool import TilertPool
from kvferry_connectors.router.tilert.sampling import Sampling
from kvferry_connectors.router.tilert.tokens import Detokenizer

logger = logging.getLogger("kvferry.router")


_PARSED = (
    "parses the answer for reasoning or tool calls, which TileRT's tokens do not pass through: ask "
    "for native decode, or switch thinking off in chat_template_kwargs"
)
_TOO_LONG = "sequence_too_long"


class OnlyNative(EngineFailed):
    """No TileRT node can answer this request as it should be answered.

    Attributes:
        word: why, in one word.
        status: for a client that wants no native decode.
    """

    def __init__(self, engine: str, word: str, why: str, status: int) -> None:
        super().__init__(engine, why)
        self.word = word
        self.status = status


class Attempt:
    """Uses a slot once. Call :meth:`leave` at the end, whatever happened.

    Attributes:
        prefilled: what P said, once it did.
        note: what the ``x-kvferry`` header says of the pool.
    """

    def __init__(self, pool: TilertPool, node: Node, slot: Slot, rid: str) -> None:
        self._pool = pool
        self._node = node
        self._slot = slot
        self._rid = rid
        self._sent = False
        self._over = False
        self._call: DecodeCall | None = None
        self.prefilled: Prefilled | None = None
        self.note = f"pool=tilert node={node.name}"

    def leave(self) -> None:
        """Brings whatever is open to its end, behind the turn's back."""
        if self._over:
            return
        self._over = True
        if self._call is not None:
            self._call.cancel()
        elif self._sent:
            self._pool.settle(self._node, self._slot, self._rid)
        else:
            self._pool.untouched(self._slot, "nothing was sent")

    async def run(
        self,
        router: Router,
        asked: Asked,
        session: str,
        known: Known | None,
        sampling: Sampling,
        output_max: int,
        reply: Reply,
        decoded: Decoded,
    ) -> None:
        """P, then the node, then the client.

        Raises:
            Answered: P refused the request.
            PrefillFailed, OnlyNative: another node would not help.
            EngineFailed, SlotLost: another node may.
        """
        decoded.engine, decoded.request = self._node.name, self._rid
        first = await self._first(router, asked, session, known, sampling)
        self.prefilled = first.prefilled
        self._check(first)
        line = reuse_line(first.prefilled.report, first.prefilled.miss)
        reply.headers[REUSE_LINE_HEADER] = f"{line} {self.note}"
        await self._confirm()
        content = decode_content(
            self._rid, first.token, output_max, sampling.for_node(), self._pool.settings.kv_wait_s
        )
        self._call = self._pool.decode(self._node, self._slot, self._rid, content)
        skip_special = asked.body.get("skip_special_tokens") is not False
        text = Detokenizer(self._pool.model.tokenizer, first.prompt, skip_special)
        maker = make_maker(asked, first)
        await answer(self._call, maker, text, first, asked, reply, decoded)

    async def _first(
        self,
        router: Router,
        asked: Asked,
        session: str,
        known: Known | None,
        sampling: Sampling,
    ) -> First:
        if not self._slot.sure():
            raise EngineFailed(self._node.name, "could not be kept leased: is a coordinator up?")
        self._sent = True
        try:
            return await first_token(router, asked, session, known, self._slot, self._rid, sampling)
        except PrefillFailed as error:
            self._sent = error.maybe_sent
            raise
        except Answered:
            self._sent = False  # Refused before any engine saw it.
            raise

    def _check(self, first: First) -> None:
        """Raises where the node cannot go on from what P did."""
        engine = first.prefilled.engine
        if first.parsed:
            raise OnlyNative(engine, "parsed", _PARSED, 501)
        reason, detail = first.refused
        if reason == _TOO_LONG:
            raise OnlyNative(self._node.name, "too_long", f"has no room: {detail}", 400)
        if reason:
            raise EngineFailed(self._node.name, f"got no KV from {engine} ({reason}: {detail})")

    async def _confirm(self) -> None:
        try:
            await self._pool.confirm(self._slot)
        except SlotLost:
            self._over = True  # Not ours: nothing may be sent to the node, nor is there to end.
            raise
        except SlotsUnavailable as error:
            logger.warning("turn %s: nobody confirmed its slot (%s)", self._slot.request, error)
        if not self._slot.sure():
            raise EngineFailed(self._node.name, "could not be kept leased: is a coordinator up?")
