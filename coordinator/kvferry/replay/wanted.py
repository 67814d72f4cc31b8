"""What the requests of a story wanted and did not get."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.events import Produced, Requested, RequestEnded, Retained, TransferFailed
from kvferry.ids import SHORT_BYTES
from kvferry.replay.stories import StoryItem

WANTED_MAX = 200
"""Misses of one story whose cause is looked for; the latest ones."""
WORDS = frozenset(
    ("nothing_held", "diverged", "not_offered", "expired_hint", "node_left", "peer_unreachable")
)
"""Misses whose cause lies in what happened to an earlier offer."""
FAILED = "transfer_failed"
"""Stands in :attr:`Wanted.word` for a transfer that the source broke off or declared void."""
BROKEN = frozenset(("void", "refused", "unreachable"))
"""Reasons of failed transfers that an end of the source's offer may explain."""


class Wanted(msgspec.Struct, kw_only=True):
    """A request that got nothing from others, or less than it wanted."""

    request: str
    node: str
    space: str
    seq: int
    stored_ms: int
    session: str
    word: str
    hashes: frozenset[bytes]
    """Short hashes of its own chain, as far as the ledger names them."""
    first_turn: bool = True
    """No request of its session had ended before."""


def wanted_in(items: Sequence[StoryItem]) -> list[Wanted]:
    """The last :data:`WANTED_MAX` misses of a story whose cause is to be looked for, in order.

    One a request.
    """
    chains: dict[str, set[bytes]] = {}
    for one in items:
        match one.body:
            case Retained() | Produced():
                chains.setdefault(one.body.request, set()).update(split(one.body.hashes))
    broken = {
        one.body.transfer
        for one in items
        if isinstance(one.body, TransferFailed) and one.body.reason in BROKEN
    }
    found: dict[str, Wanted] = {}
    for one in items:
        body = one.body
        if not isinstance(body, Requested | RequestEnded):
            continue
        word = body.miss.partition("@")[0]
        if isinstance(body, Requested) and body.transfer in broken:
            word = FAILED
        moved = isinstance(body, RequestEnded) and body.pulled_tokens
        if (word in WORDS or word == FAILED) and not moved and body.request not in found:
            found[body.request] = Wanted(
                request=body.request,
                node=one.node,
                space=one.space,
                seq=one.seq,
                stored_ms=one.stored_ms,
                session=body.session,
                word=word,
                hashes=frozenset(chains.get(body.request, ())),
            )
    return list(found.values())[-WANTED_MAX:]


def split(hashes: bytes) -> list[bytes]:
    """Short hashes, one by one."""
    return [hashes[at : at + SHORT_BYTES] for at in range(0, len(hashes), SHORT_BYTES)]
