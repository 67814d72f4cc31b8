"""A send of KV to a TileRT decode node, and what became of it, in one plain sentence each."""

from __future__ import annotations

from kvferry.core.events import RequestEnded, SendBegan, SendEnded
from kvferry.core.story_not_kept import not_kept
from kvferry.core.story_words import counted, milliseconds, size

_STAGES = {
    "claim": "before anything was asked of the node",
    "staging": "for want of staging memory",
    "admission": "when the node was asked for admission",
    "write": "while the bytes were written",
    "done": "when the node was to be told that it is done",
}


def send_began(node: str, event: SendBegan) -> str:
    """What is to be sent where."""
    lease = f", fence {event.fence}" if event.fence else ", without a lease"
    slot = event.slot or "a decode node"
    where = f"{slot} at {event.target}{lease}" if event.target else slot
    return (
        f"{node} is to send the KV of request {event.request} "
        f"({counted(event.tokens, 'token')}) to {where}, as {event.rid}, send {event.send}"
    )


def send_ended(node: str, event: SendEnded) -> str:
    """How it ended."""
    took = f" after {milliseconds(event.total_ms)}" if event.total_ms else ""
    if event.reason:
        where = _STAGES.get(event.stage, f"at {event.stage}")
        why = f" ({event.detail})" if event.detail else ""
        return (
            f"{node} did not send the KV of request {event.request}: {event.reason} {where}{why}"
            f"{took}, send {event.send}"
        )
    admitted = f", admitted after {milliseconds(event.admitted_ms)}" if event.admitted_ms else ""
    untold = f"; the node cannot keep it: {event.no_origin}" if event.no_origin else ""
    return (
        f"{node} sent the KV of request {event.request}, {size(event.bytes)} in "
        f"{milliseconds(event.total_ms)}{admitted}, send {event.send}{untold}"
    )


def sent_ended(node: str, event: RequestEnded) -> str:
    """What a node made of a prompt that was sent to it, and what it keeps of that."""
    kept = f"; {counted(event.kept_blocks, 'block')} kept" if event.kept_blocks else ""
    if event.not_kept:
        kept = f"; nothing kept: {not_kept(event.not_kept)}"
    return (
        f"{node} ended request {event.request} ({event.outcome}): "
        f"{counted(event.prompt_tokens, 'prompt token')} sent to it, "
        f"{counted(event.output_tokens, 'token')} out{kept}"
    )
