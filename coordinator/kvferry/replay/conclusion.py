"""One line that says how a request came to its KV, and what to do if it reused nothing."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.core.events import (
    AnyEvent,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
)
from kvferry.core.story_not_kept import not_kept
from kvferry.replay.causes import cause_of
from kvferry.replay.cures import cure_of
from kvferry.replay.words import counted, duration

_FAILURES: dict[str, str] = {
    "void": "the source had reused a block before the read was settled",
    "digest": "bytes arrived that differ from what the source sent",
    "refused": "the source refused",
    "busy": "the source served as many reads as it may",
    "unreachable": "the source could not be reached",
    "deadline": "it took longer than its deadline",
    "aborted": "the request was aborted",
    "node_left": "the target was declared gone",
    "lost": "its outcome was lost with the target's record",
    "unused": "the scheduler took fewer tokens than were offered",
    "error": "the data plane failed",
}


_UNANSWERED = {
    "aborted": "the request was aborted before",
    "error": "the engine failed",
}
"""How a request ends without an answer."""


def conclude(events: Sequence[tuple[str, AnyEvent]]) -> tuple[str, str]:
    """What became of a request, and the cure where something is amiss.

    Args:
        events: (node, event) pairs of the story, in order.

    Returns:
        (conclusion, cure); the cure is empty when there is nothing to cure.
    """
    lines: list[str] = []
    cures: list[str] = []
    told: set[str] = set()
    for node, event in events:
        if isinstance(event, RequestEnded):
            told.add(event.request)
            line, cure = _ended(node, event, events)
            lines.append(line)
            cures.append(cure)
    for node, event in events:
        # A request that has not ended yet still has its choice on record.
        if isinstance(event, Requested) and event.request not in told:
            told.add(event.request)
            line, cure = _running(node, event, events)
            lines.append(line)
            cures.append(cure)
    if not lines:
        return (
            "the request's end is not in the ledger: it still runs, its node left, or the record "
            "was dropped by the ledger's limits",
            "",
        )
    return "; ".join(lines), "; ".join(dict.fromkeys(cure for cure in cures if cure))


def failure(event: TransferFailed) -> str:
    """Why a transfer failed, in plain words, with what its writer added and how it was fenced."""
    why = _FAILURES.get(event.reason, event.reason)
    detail = f" ({event.detail})" if event.detail else ""
    fence = f", fenced by {event.fence}" if event.fence else ""
    return f"{why}{detail}{fence}"


def predicted(event: Requested) -> str:
    """The numbers of a decision, in brackets; empty where it had none."""
    if not event.predicted_ms and not event.recompute_ms:
        return ""
    queue = f", {duration(event.queue_ms)} of it waiting," if event.queue_ms else ""
    source = f" from {event.source}" if event.source and not event.transfer else ""
    parts = []
    if event.predicted_ms:
        parts.append(f"{duration(event.predicted_ms)} to move{source}{queue}")
    if event.recompute_ms:
        parts.append(f"{duration(event.recompute_ms)} to compute")
    return f" (predicted: {' against '.join(parts)})"


def waited(event: RequestEnded) -> float:
    """Milliseconds from a request's arrival until its prompt was computed; 0 if not known."""
    known = event.ttft_ms and event.prefill_ms
    return max(0.0, event.ttft_ms - event.prefill_ms) if known else 0.0


def _numbers(request: str, events: Sequence[tuple[str, AnyEvent]]) -> str:
    """The last numbers on which nothing was pulled for a request."""
    asked = _asked(request, events)
    return predicted(asked) if asked is not None else ""


def _asked(request: str, events: Sequence[tuple[str, AnyEvent]]) -> Requested | None:
    """What the request wanted, as it was told last."""
    found = [one for _, one in events if isinstance(one, Requested) and one.request == request]
    return found[-1] if found else None


def _ended(
    node: str, event: RequestEnded, events: Sequence[tuple[str, AnyEvent]]
) -> tuple[str, str]:
    if event.prompt_sent:
        return _generated(node, event), ""
    if not event.output_tokens and event.outcome in _UNANSWERED:
        return _unanswered(node, event, events)
    parts = f"{node} answered a prompt of {counted(event.prompt_tokens, 'token')}: "
    if event.pulled_tokens:
        took = _moved(event.request, events)
        return (
            f"{parts}{event.pulled_tokens:,} pulled from {event.source or 'another node'}{took}, "
            f"{event.local_tokens:,} from its own cache, {event.computed_tokens:,} computed",
            "",
        )
    own = f"{event.local_tokens:,} from its own cache, {event.computed_tokens:,} computed; "
    failed = [
        one for _, one in events if isinstance(one, TransferFailed) and one.request == event.request
    ]
    if failed:
        last = failed[-1]
        return (
            f"{parts}{own}a transfer from {last.source} failed at {last.stage}: {failure(last)}",
            cure_of("transfer_failed", last.reason, last.source),
        )
    miss = event.miss or _miss_of(event.request, events)
    if miss:
        known = cause_of(miss, _asked(event.request, events))
        numbers = _numbers(event.request, events)
        if known.word in ("plan_late", "prefill_late") and waited(event):
            numbers = f"{numbers}; it waited for {duration(waited(event))}"
        return f"{parts}{own}nothing was pulled because {known.meaning}{numbers}", known.cure
    return f"{parts}{own}nothing had to be pulled", ""


def _generated(node: str, event: RequestEnded) -> str:
    """What a TileRT node made of a prompt whose KV another engine had sent to it."""
    kept = f"kept {counted(event.kept_blocks, 'block')} of prompt and answer for the next turn"
    if event.not_kept:
        kept = f"kept nothing for the next turn because {not_kept(event.not_kept)}"
    how = f", {_UNANSWERED[event.outcome]}" if event.outcome in _UNANSWERED else ""
    return (
        f"{node} generated {counted(event.output_tokens, 'token')} from a prompt of "
        f"{counted(event.prompt_tokens, 'token')} whose KV was sent to it{how}, and {kept}"
    )


def _unanswered(
    node: str, event: RequestEnded, events: Sequence[tuple[str, AnyEvent]]
) -> tuple[str, str]:
    """A request that ended before its first token; what it pulled had begun to no end."""
    text = (
        f"{node} gave no token for a prompt of {counted(event.prompt_tokens, 'token')}: "
        f"{_UNANSWERED[event.outcome]}"
    )
    if event.local_tokens or event.pulled_tokens:
        text += (
            f", with {event.local_tokens:,} from its own cache and {event.pulled_tokens:,} pulled"
        )
    for _, one in events:
        if isinstance(one, TransferFailed) and one.request == event.request:
            text += f"; a transfer from {one.source} ended at {one.stage}: {failure(one)}"
    return text, cure_of("transfer_failed", "aborted") if event.outcome == "aborted" else ""


def _running(
    node: str, event: Requested, events: Sequence[tuple[str, AnyEvent]]
) -> tuple[str, str]:
    gone = _gone(node, event, events)
    end = gone or "its end is not on record yet"
    if event.transfer:
        verb = "began to pull" if gone else "pulls"
        return (
            f"{node} wanted {event.wanted} blocks and {verb} from {event.source} "
            f"(by {event.basis or 'plan'}, {event.granted} granted); {end}",
            f"look at the log of {node}, and send the request again" if gone else "",
        )
    known = cause_of(event.miss, event)
    return (
        f"{node} wanted {event.wanted} blocks and pulls nothing because {known.meaning}"
        f"{predicted(event)}; {end}",
        known.cure,
    )


def _gone(node: str, asked: Requested, events: Sequence[tuple[str, AnyEvent]]) -> str:
    """What ended the node's process after it admitted the request; empty if nothing did."""
    after = False
    for writer, event in events:
        after = after or event is asked
        if not after:
            continue
        match event:
            case NodeLeft() if event.node == node:
                return f"then {node} was declared gone ({event.why}), and the request with it"
            case NodeClosed() if writer == node:
                return f"then {node} was stopped, and the request with it"
            case NodeJoined() if writer == node:
                return f"then another process of {node} took its place, and the request was lost"
    return ""


def _moved(request: str, events: Sequence[tuple[str, AnyEvent]]) -> str:
    for _, one in events:
        if isinstance(one, Transferred) and one.request == request:
            return f" over {one.backend} in {duration(one.total_ms)}"
    return ""


def _miss_of(request: str, events: Sequence[tuple[str, AnyEvent]]) -> str:
    misses = [
        one.miss
        for _, one in events
        if isinstance(one, Requested) and one.request == request and one.miss
    ]
    return misses[-1] if misses else ""
