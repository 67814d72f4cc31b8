"""What became of wanted KV, in plain words."""

from __future__ import annotations

from kvferry.core.story import EVICTIONS
from kvferry.replay.earlier import LATE_MS, Kept
from kvferry.replay.stories import MissCause
from kvferry.replay.wanted import FAILED, Wanted
from kvferry.replay.words import counted, duration

_GONE = {
    "node_left": "was declared gone",
    "node_closed": "was stopped",
    "restarted": "was replaced by a new process",
}
NEWS_MS = 1_000
"""An offer that was recorded so shortly before need not have reached who decided: nodes hand their
events over in batches."""
NEVER, EVICTED, EVICTED_LATE = "never_produced", "evicted", "evicted_late"
GONE, DIVERGED, HELD = "source_gone", "diverged", "still_held"


def fate(wanted: Wanted, kept: Kept | None) -> MissCause | None:
    """Why a wanted run was not there, as far as the ledger tells; None where it tells nothing.

    Args:
        wanted: a request and what is known of its chain and session.
        kept: the offer that came nearest to it before it was wanted.
    """
    if kept is None:
        return _never(wanted)
    depth = kept.depth(wanted)
    cut = kept.ended if kept.now < depth else None
    late = cut is not None and cut.stored_ms > wanted.stored_ms + LATE_MS
    ended = None if late else cut
    if ended is None and wanted.word == FAILED:
        return None  # The transfer's own failure says all there is.
    how, text = _told(wanted, kept, depth, gone=ended is not None)
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=how,
        text=text,
        wanted_ms=wanted.stored_ms,
        source=kept.node,
        offer=kept.offer,
        offered_ms=kept.begun.stored_ms,
        ended_ms=ended.stored_ms if ended is not None else 0,
        ended_seq=ended.seq if ended is not None else 0,
        reason=kept.reason if ended is not None else "",
        before_ms=wanted.stored_ms - ended.stored_ms if ended is not None else 0,
    )


def _never(wanted: Wanted) -> MissCause | None:
    if wanted.hashes:
        text = "no node had offered any part of this prompt before"
    elif wanted.session and wanted.first_turn:
        text = f"it is the first turn of session {wanted.session}"
    elif wanted.session:
        text = f"no earlier turn of session {wanted.session} had left an offer"
    else:
        return None
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=NEVER,
        text=f"never produced: {text}, as far back as the ledger reaches",
        wanted_ms=wanted.stored_ms,
    )


def _told(wanted: Wanted, kept: Kept, depth: int, *, gone: bool) -> tuple[str, str]:
    """(how, text)"""
    of = f" of request {kept.request}" if kept.request else ""
    if not depth:
        return DIVERGED, (
            f"diverged: {kept.node} offered {counted(kept.count, 'block')}{of} for the same "
            f"session as {kept.offer}, but its prompt differs from this one within the first "
            "blocks"
        )
    had = f"{kept.node} had offered {counted(depth, 'block')} of it ({kept.offer}{of})"
    if not gone or kept.ended is None:
        if wanted.word == "diverged":
            return DIVERGED, f"diverged: {had} and still did; the prompt differs from there on"
        since = wanted.stored_ms - kept.begun.stored_ms
        fresh = "; the news may not have come in time" if since < NEWS_MS else ""
        return HELD, f"still held: {had} for {duration(since)} when it was wanted{fresh}"
    before = wanted.stored_ms - kept.ended.stored_ms
    when = f"{duration(abs(before))} {'before' if before >= 0 else 'after'} it was wanted"
    held = f"after {duration(kept.ended.stored_ms - kept.begun.stored_ms)}"
    if kept.reason in _GONE:
        return GONE, f"source gone: {had}; {kept.node} {_GONE[kept.reason]} {when}"
    why = EVICTIONS.get(kept.reason, kept.reason)
    if kept.reason == "unlisted":
        why = "its end was lost, the node's inventory no longer lists it"
    rest = (
        f"{counted(kept.now, 'block')} at its beginning stayed, the rest was " if kept.now else ""
    )
    how = EVICTED if before >= 0 else EVICTED_LATE
    return how, f"evicted: {had}; {rest}gone {held}, {when}: {why}"
