"""What became of wanted KV, in plain words."""

from __future__ import annotations

import msgspec

from kvferry.core.leases import HOST
from kvferry.core.story import EVICTIONS
from kvferry.ids import sample_stride
from kvferry.replay.cures import cure_of
from kvferry.replay.earlier import LATE_MS
from kvferry.replay.kept import Background, Kept
from kvferry.replay.stories import MissCause
from kvferry.replay.wanted import FAILED, PARTLY, Wanted
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
GONE, DIVERGED, REFUSED, HELD = "source_gone", "diverged", "refused", "still_held"
FATES = frozenset((NEVER, EVICTED, EVICTED_LATE, GONE, DIVERGED, REFUSED, HELD))
"""What may have become of it."""
TENANT, SPACE, FENCE = "tenant", "space", "fence"
SOUGHT = frozenset(("nothing_held", "diverged", "not_offered"))
"""Misses of what was looked for and not found."""
LOST = SOUGHT | {
    *("expired_hint", "node_left", "peer_unreachable", "space_mismatch", "paused"),
    *(FAILED, PARTLY),
}
"""Misses whose cause may lie in what happened to an earlier offer."""
BROKEN = frozenset(("void", "refused", "unreachable"))
"""Reasons of failed transfers that an end of the source's offer may explain."""


def fate(wanted: Wanted, kept: Kept | None, background: Background) -> MissCause | None:
    """Why a wanted run was not there, as far as the ledger tells; None where it tells nothing.

    Args:
        wanted: a request and what is known of its chain and session.
        kept: the offer that came nearest to it before it was wanted.
        background: what the ledger says besides.
    """
    if wanted.word not in LOST:
        return None
    if wanted.failed is not None and wanted.failed.reason not in BROKEN:
        return None  # The transfer's own failure says all there is.
    if wanted.failed is not None and kept is not None and kept.node != wanted.failed.source:
        return None  # What became of another node's offer is no reason: that node was not asked.
    if kept is None:
        return _never(wanted, background) if wanted.word in SOUGHT else None
    if wanted.word == PARTLY:
        return _partly(wanted, kept, background)
    depth = kept.depth(wanted) if kept.space == wanted.space else 0
    if not depth:
        return _apart(wanted, kept, background) if wanted.word != FAILED else None
    cut = kept.ended if kept.now < depth else None
    # A plan was made of what the ledger had; a source that was asked may know of an end before.
    late_ms = 0 if wanted.word == "nothing_held" else LATE_MS
    if cut is not None and cut.stored_ms <= wanted.stored_ms + late_ms:
        return _ended(wanted, kept, depth)
    return _held(wanted, kept, depth, background) if wanted.word in SOUGHT else None


def _cause(wanted: Wanted, how: str, text: str, reason: str = "") -> MissCause:
    return MissCause(
        request=wanted.request,
        node=wanted.node,
        how=how,
        text=text,
        wanted_ms=wanted.stored_ms,
        reason=reason,
    )


def _of(cause: MissCause, kept: Kept, blocks: int) -> MissCause:
    return msgspec.structs.replace(
        cause,
        cure=cure_of(cause.how, cause.reason, kept.node),
        source=kept.node,
        offer=kept.offer,
        blocks=blocks,
        offered_ms=kept.begun.stored_ms,
    )


def _never(wanted: Wanted, background: Background) -> MissCause | None:
    if wanted.session and wanted.first_turn:
        text = f"it is the first turn of session {wanted.session}"
    elif wanted.session:
        text = f"no earlier turn of session {wanted.session} had left an offer"
    elif wanted.hashes:
        text = "no node had offered any part of this prompt before"
    else:
        return None
    reach = duration(max(0, wanted.stored_ms - background.first_ms))
    since = f"as far back as the ledger reaches ({reach})"
    cause = _cause(wanted, NEVER, f"never produced: {text}, {since}")
    return msgspec.structs.replace(cause, cure=cure_of(NEVER))


def _apart(wanted: Wanted, kept: Kept, background: Background) -> MissCause:
    """The same session, or what a hint named, without one block in common."""
    run = f"{counted(kept.count, 'block')} as {kept.offer}{_request(kept)}"
    tie = "the hint named" if kept.offer == wanted.hinted else f"session {kept.session} has"
    if kept.space != wanted.space:
        differs = _differs(wanted, kept, background)
        because = f": {'; '.join(differs)}" if differs else ""
        text = (
            f"refused: {kept.node}'s KV is not interchangeable with that of {wanted.node}"
            f"{because} ({tie} its {run}, in space {kept.space})"
        )
        cause = _cause(wanted, REFUSED, text, SPACE)
        return msgspec.structs.replace(
            _of(cause, kept, 0), source_space=kept.space, differs=differs
        )
    tenant = wanted.asked.tenant if wanted.asked is not None else ""
    # Older records have no tag of what is in the host tier.
    tagged = kept.tenant or kept.tier != HOST
    if wanted.asked is not None and tagged and kept.tenant != tenant:
        text = (
            f"refused: another tenant's: {tie} {kept.node}'s {run}, made under "
            f"{_salt(kept.tenant)}, and this request has {_salt(tenant)}"
        )
        return _of(_cause(wanted, REFUSED, text, TENANT), kept, 0)
    text = f"diverged at token 0: {tie} {kept.node}'s {run}, but this prompt's first block differs"
    return msgspec.structs.replace(_of(_cause(wanted, DIVERGED, text), kept, 0), token=0)


def _salt(tenant: str) -> str:
    return f"another cache_salt (tag {tenant})" if tenant else "no cache_salt"


def _differs(wanted: Wanted, kept: Kept, background: Background) -> tuple[str, ...]:
    here = background.joined.get((wanted.space, wanted.node))
    there = background.joined.get((kept.space, kept.node))
    if here is None or there is None:
        return ()
    one, other = here.components, there.components
    return tuple(
        f"{name}: {one.get(name, 'none')} here, {other.get(name, 'none')} there"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )


def _partly(wanted: Wanted, kept: Kept, background: Background) -> MissCause | None:
    """Why the rest was not pulled: it differs, or had been lost. None where it is simply new."""
    assert wanted.asked is not None
    granted = wanted.asked.granted
    apart = kept.space != wanted.space or kept.node != wanted.asked.source
    if apart or kept.count <= granted or not wanted.hashes:
        return None
    if kept.depth(wanted) > granted:
        return _ended(wanted, kept, kept.depth(wanted)) if kept.now <= granted else None
    return _diverged(wanted, kept, granted) if kept.now > granted else None


def _diverged(wanted: Wanted, kept: Kept, shared: int) -> MissCause:
    assert wanted.token is not None
    text = (
        f"diverged at token {wanted.token:,}: {kept.node} offered {counted(kept.count, 'block')} "
        f"({kept.offer}{_request(kept)}), of which the first {shared:,} are this prompt's"
    )
    cause = _of(_cause(wanted, DIVERGED, text), kept, shared)
    return msgspec.structs.replace(cause, token=wanted.token)


def _held(wanted: Wanted, kept: Kept, depth: int, background: Background) -> MissCause:
    if wanted.word == "diverged" and wanted.token is not None:
        here = background.joined.get((wanted.space, wanted.node))
        size = here.block_size if here is not None else 0
        return _diverged(wanted, kept, wanted.token // size if size else depth)
    since = wanted.stored_ms - kept.begun.stored_ms
    joined = background.joined.get((kept.space, kept.node))
    stride = sample_stride(joined.block_size) if joined is not None and joined.block_size else 1
    note = "; the news may not have come in time" if since < NEWS_MS else ""
    if wanted.word == "nothing_held" and depth < stride:
        note = (
            f"; plans know one block in {stride}, so that a prefix so short is found by hint only"
        )
    had = f"{kept.node} had offered {counted(depth, 'block')} of it ({kept.offer}{_request(kept)})"
    text = f"still held: {had} for {duration(since)} when it was wanted{note}"
    return _of(_cause(wanted, HELD, text), kept, depth)


def _ended(wanted: Wanted, kept: Kept, depth: int) -> MissCause:
    assert kept.ended is not None
    before = wanted.stored_ms - kept.ended.stored_ms
    when = f"{duration(abs(before))} {'before' if before >= 0 else 'after'} it was wanted"
    had = f"{kept.node} had offered {counted(depth, 'block')} of it ({kept.offer}{_request(kept)})"
    if kept.reason in _GONE:
        text = f"source gone: {had}; {kept.node} {_GONE[kept.reason]} {when}"
        cause = _cause(wanted, GONE, text, kept.reason)
    else:
        held = f"after {duration(kept.ended.stored_ms - kept.begun.stored_ms)}"
        stayed = f"{counted(kept.now, 'block')} at its beginning stayed, the rest was "
        text = (
            f"evicted: {had}; {stayed if kept.now else ''}gone {held}, {when}: {_why(kept)}"
            f"{_lease(kept)}"
        )
        cause = _cause(wanted, EVICTED if before >= 0 else EVICTED_LATE, text, kept.reason)
    over = kept.lease.ended if kept.lease is not None else None
    return msgspec.structs.replace(
        _of(cause, kept, depth),
        ended_ms=kept.ended.stored_ms,
        ended_seq=kept.ended.seq,
        before_ms=before,
        lease_ended_ms=over.stored_ms if over is not None else 0,
        lease_reason=kept.lease.reason if kept.lease is not None else "",
    )


def _why(kept: Kept) -> str:
    if kept.reason == "unlisted":
        return "its end was lost, the node's inventory no longer lists it"
    return EVICTIONS.get(kept.reason, kept.reason)


def _lease(kept: Kept) -> str:
    """What a lease did for it before."""
    if kept.ended is None or kept.lease is None or kept.lease.ended is None:
        return ""
    earlier = kept.ended.stored_ms - kept.lease.ended.stored_ms
    why = EVICTIONS.get(kept.lease.reason, kept.lease.reason)
    if earlier <= 0:
        return f"; its lease ended with it: {why}" if why != _why(kept) else ""
    return f"; its lease had ended {duration(earlier)} earlier: {why}"


def _request(kept: Kept) -> str:
    return f" of request {kept.request}" if kept.request else ""
