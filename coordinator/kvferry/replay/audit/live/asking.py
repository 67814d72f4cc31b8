"""Asking nodes what they hold."""

from __future__ import annotations

import msgspec

from kvferry.core.messages import Control, Holdings, control_subject, encode
from kvferry.errors import LedgerUnavailable
from kvferry.ports.log import BusPort

ANSWER_S = 3.0
"""An agent answers within milliseconds; one that is silent for so long, twice, does not answer."""
PAGES_MAX = 4_096

_DECODE = msgspec.msgpack.Decoder(Holdings).decode


async def ask(bus: BusPort, space: str, node: str) -> list[Holdings] | None:
    """All pages of what a node holds, each exact at its own place; None from a silent node.

    An answer that cannot be decoded counts as none: another version writes it.
    """
    pages: list[Holdings] = []
    after = ""
    while len(pages) < PAGES_MAX:
        question = encode(Control(verb="tell", after=after))
        try:
            answer = await bus.request(control_subject(space, node), question, ANSWER_S)
            page = _DECODE(answer)
        except (LedgerUnavailable, msgspec.MsgspecError):
            return None
        pages.append(page)
        if not page.upto:
            return pages
        after = page.upto
    return pages
