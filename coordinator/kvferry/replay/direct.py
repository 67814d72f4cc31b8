"""Causes of misses that the request's own events tell: its numbers, its wait, its failure."""

from __future__ import annotations

from kvferry.core.events import TransferFailed
from kvferry.replay.causes import cause_of
from kvferry.replay.conclusion import failure, predicted, waited
from kvferry.replay.cures import cure_of
from kvferry.replay.fate import FENCE, REFUSED
from kvferry.replay.kept import Kept
from kvferry.replay.stories import MissCause
from kvferry.replay.wanted import FAILED, PARTLY, Wanted
from kvferry.replay.words import counted, duration

LATE = frozenset(("plan_late", "prefill_late"))
UNASKED = LATE | {"no_coordinator", "not_joined", "peer_unreachable", "expired_hint", "outbox_full"}
"""Misses of what may well have been there."""
STAGES = {
    "pin": "when {source} was asked for the blocks (pin)",
    "read": "while the bytes moved (read)",
    "settle": "when {source} was asked whether they had stayed (settle)",
    "use": "when the engine was to use them (use)",
}
"""Where a transfer failed."""


def direct(wanted: Wanted, kept: Kept | None) -> MissCause | None:
    """The cause as the request's own events have it; None where nothing is amiss.

    Args:
        wanted: a request with its events.
        kept: the offer that came nearest to it, for what was there and not found in time.
    """
    if wanted.word == PARTLY:
        return None
    if wanted.word == FAILED:
        return _failed(wanted, wanted.failed) if wanted.failed is not None else None
    known, asked = cause_of(wanted.word, wanted.asked), wanted.asked
    text = f"{wanted.word.replace('_', ' ')}: {known.meaning}"
    late_ms = waited(wanted.ended) if wanted.ended is not None and wanted.word in LATE else 0.0
    if late_ms:
        text += f"; it waited for {duration(late_ms)}"
    there = kept.depth(wanted) if kept is not None and wanted.hashes else 0
    if wanted.word in UNASKED and kept is not None and 0 < there <= kept.now:
        text += f"; {kept.node} had offered {counted(there, 'block')} of it ({kept.offer})"
    else:
        kept, there = None, 0
    asked_of = asked.source if asked is not None else ""
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=wanted.word,
        text=f"{text}{predicted(asked)}" if asked is not None else text,
        cure=known.cure,
        wanted_ms=wanted.stored_ms,
        source=kept.node if kept is not None else asked_of,
        offer=kept.offer if kept is not None else "",
        offered_ms=kept.begun.stored_ms if kept is not None else 0,
        blocks=there or (asked.granted if asked is not None else 0),
        predicted_ms=asked.predicted_ms if asked is not None else 0.0,
        recompute_ms=asked.recompute_ms if asked is not None else 0.0,
        queue_ms=asked.queue_ms if asked is not None else 0.0,
        waited_ms=late_ms,
    )


def _failed(wanted: Wanted, failed: TransferFailed) -> MissCause:
    where = STAGES.get(failed.stage, f"at {failed.stage}").replace("{source}", failed.source)
    if failed.reason == "refused" and failed.detail.partition(":")[0] == "incarnation":
        return _fenced(wanted, failed)
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=FAILED,
        text=f"transfer failed {where}: {failure(failed)}",
        cure=cure_of(FAILED, failed.reason, failed.source),
        wanted_ms=wanted.stored_ms,
        source=failed.source,
        reason=failed.reason,
        stage=failed.stage,
        blocks=wanted.asked.granted if wanted.asked is not None else 0,
    )


def _fenced(wanted: Wanted, failed: TransferFailed) -> MissCause:
    """The source is another process by now: what it had in memory is not what was offered."""
    before = wanted.asked.source_incarnation if wanted.asked is not None else ""
    process = f" (process {before})" if before else ""
    text = (
        f"refused: fenced: what was offered was in the memory of an earlier process of "
        f"{failed.source}{process}, and the one that was asked does not vouch for it "
        f"({failed.detail})"
    )
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=REFUSED,
        text=text,
        cure=cure_of("source_gone", "restarted", failed.source),
        wanted_ms=wanted.stored_ms,
        source=failed.source,
        reason=FENCE,
        stage=failed.stage,
        blocks=wanted.asked.granted if wanted.asked is not None else 0,
    )
