"""Whether a request's KV went to its TileRT decode node, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.core.events import SendBegan, SendEnded
from kvferry.core.story_words import size
from kvferry.replay.stories import StoryItem
from kvferry.replay.words import counted, duration


def conclude_sends(items: Iterable[StoryItem]) -> str:
    """How each send in a story ended; empty without any."""
    began: dict[str, tuple[str, SendBegan]] = {}
    told: dict[str, str] = {}
    for one in items:
        event = one.body
        if isinstance(event, SendBegan):
            began[event.send] = (one.node, event)
            told.setdefault(event.send, "")
        elif isinstance(event, SendEnded):
            told[event.send] = _ended(began.get(event.send), one.node, event)
    for send, (node, event) in began.items():
        told[send] = told[send] or (
            f"its KV was to go from {node} to {_where(event)}, and how that ended is not recorded"
        )
    return "; ".join(told.values())


def _where(event: SendBegan) -> str:
    return event.slot or event.target or "a decode node"


def _ended(began: tuple[str, SendBegan] | None, node: str, event: SendEnded) -> str:
    where = f" to {_where(began[1])}" if began is not None else ""
    if event.reason:
        detail = f" ({event.detail})" if event.detail else ""
        at = f" at {event.stage}" if event.stage else ""
        return f"its KV did not go from {node}{where}: {event.reason}{at}{detail}"
    tokens = f"{counted(began[1].tokens, 'token')}, " if began is not None else ""
    untold = f", which keeps nothing of it because {event.no_origin}" if event.no_origin else ""
    return (
        f"its KV ({tokens}{size(event.bytes)}) went from {node}{where} in "
        f"{duration(event.total_ms)}{untold}"
    )
