"""What the requests of a story wanted and did not get."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.events import Produced, Requested, RequestEnded, Retained, TransferFailed
from kvferry.ids import SHORT_BYTES
from kvferry.replay.stories import StoryItem

WANTED_MAX = 200
"""Misses of one story whose cause is looked for; the latest ones."""
NOTHING_AMISS = frozenset(("", "local", "too_short", "reuse_off", "observe"))
"""Misses that need no cause."""
FAILED = "transfer_failed"
"""Stands in :attr:`Wanted.word` for a transfer that ended without use."""
PARTLY = "partly"
"""Stands there for a request that pulled less than it wanted."""


class Wanted(msgspec.Struct, kw_only=True):
    """A request that got nothing from others, or less than it wanted."""

    request: str
    node: str
    space: str
    seq: int
    stored_ms: int
    session: str
    word: str
    token: int | None = None
    """The first token that its source did not grant, where that is known."""
    hashes: frozenset[bytes]
    """Short hashes of its own chain, as far as the ledger names them."""
    first_turn: bool = True
    """No request of its session had ended before."""
    asked: Requested | None = None
    ended: RequestEnded | None = None
    failed: TransferFailed | None = None

    @property
    def hinted(self) -> str:
        """The offer that its hint named; empty without one."""
        return self.asked.hinted if self.asked is not None else ""


class _Request:
    """What a story has of one request on one node."""

    def __init__(self) -> None:
        self.asked: StoryItem | None = None
        self.ended: StoryItem | None = None
        self.failed: TransferFailed | None = None


def wanted_in(items: Sequence[StoryItem]) -> list[Wanted]:
    """The last :data:`WANTED_MAX` misses of a story whose cause is to be looked for, in order.

    One a request.
    """
    chains: dict[str, set[bytes]] = {}
    requests: dict[str, _Request] = {}
    for one in items:
        match one.body:
            case Retained() | Produced():
                chains.setdefault(one.body.request, set()).update(split(one.body.hashes))
            case Requested():
                requests.setdefault(one.body.request, _Request()).asked = one
            case RequestEnded():
                requests.setdefault(one.body.request, _Request()).ended = one
            case TransferFailed():
                requests.setdefault(one.body.request, _Request()).failed = one.body
    found = [
        wanted
        for name, known in requests.items()
        if (wanted := _wanted(name, known, frozenset(chains.get(name, ())))) is not None
    ]
    found.sort(key=lambda wanted: wanted.seq)
    return found[-WANTED_MAX:]


def split(hashes: bytes) -> list[bytes]:
    """Short hashes, one by one."""
    return [hashes[at : at + SHORT_BYTES] for at in range(0, len(hashes), SHORT_BYTES)]


def _wanted(name: str, known: _Request, hashes: frozenset[bytes]) -> Wanted | None:
    item = known.asked or known.ended
    assert item is not None or known.failed is not None
    if item is None:
        return None  # Only the failure is in the story: of which request, it says itself.
    asked = known.asked.body if known.asked is not None else None
    ended = known.ended.body if known.ended is not None else None
    assert asked is None or isinstance(asked, Requested)
    assert ended is None or isinstance(ended, RequestEnded)
    word, token = _word(asked, ended, known.failed)
    if word in NOTHING_AMISS:
        return None
    return Wanted(
        request=name,
        node=item.node,
        space=item.space,
        seq=item.seq,
        stored_ms=item.stored_ms,
        session=(asked or ended).session,  # type: ignore[union-attr]
        word=word,
        token=token,
        hashes=hashes,
        asked=asked,
        ended=ended,
        failed=known.failed,
    )


def _word(
    asked: Requested | None, ended: RequestEnded | None, failed: TransferFailed | None
) -> tuple[str, int | None]:
    """What the miss is called, and the first token that was not granted."""
    if ended is not None and ended.pulled_tokens:
        return _partly(asked, ended)
    if failed is not None:
        return FAILED, None
    miss = (asked.miss if asked is not None else "") or (ended.miss if ended is not None else "")
    word, _, at = miss.partition("@")
    return word, int(at) if at.isdigit() else None


def _partly(asked: Requested | None, ended: RequestEnded) -> tuple[str, int | None]:
    if asked is None or not 0 < asked.granted < asked.wanted:
        return "", None
    return PARTLY, ended.local_tokens + ended.pulled_tokens
