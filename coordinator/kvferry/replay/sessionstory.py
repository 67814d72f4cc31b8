"""What became of a session and of a transfer, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.core.events import (
    PinEnded,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.story import PIN_ENDS
from kvferry.replay.causes import cause
from kvferry.replay.conclusion import failure, predicted
from kvferry.replay.cures import cure_of
from kvferry.replay.stories import StoryItem
from kvferry.replay.words import counted, duration


def conclude_session(session: str, items: Sequence[StoryItem]) -> tuple[str, str]:
    """What a session's requests add up to, and the cure of the commonest miss.

    Args:
        session: its id.
        items: its story, in order.
    """
    ended = [one.body for one in items if isinstance(one.body, RequestEnded)]
    turns = {one.body.request for one in items if isinstance(one.body, TurnEnded)}
    nodes = dict.fromkeys(one.node for one in items if isinstance(one.body, RequestEnded))
    done = sum(1 for one in items if isinstance(one.body, Transferred))
    failed = sum(1 for one in items if isinstance(one.body, TransferFailed))
    misses = _misses(items)
    many = f"{counted(len(turns), 'turn')}, " if turns else ""
    own = [one.stored_ms for one in items if isinstance(one.body, _SPANS)]
    lasted = duration(max(own) - min(own)) if own else duration(0)
    where = f" on {' and '.join(nodes)}" if nodes else ""
    text = f"session {session}: {many}{counted(len(ended), 'request')}{where} in {lasted}"
    if ended:
        made = [one for one in ended if not one.prompt_sent]
        sent = sum(one.prompt_tokens for one in ended if one.prompt_sent)
        text += (
            f"; {sum(one.prompt_tokens for one in made):,} prompt tokens = "
            f"{sum(one.local_tokens for one in made):,} local + "
            f"{sum(one.pulled_tokens for one in made):,} pulled + "
            f"{sum(one.computed_tokens for one in made):,} computed; "
            f"{f'{sent:,} prompt tokens sent to TileRT nodes; ' if sent else ''}"
            f"{counted(done, 'transfer')} used, {failed:,} failed"
        )
    if any(one.session_over for one in ended):
        text += "; the client said that it is over"
    common = sorted(misses, key=lambda word: (-misses[word], word))
    if common:
        listed = ", ".join(f"{misses[word]:,} {word}" for word in common)
        text += f"; requests that pulled nothing: {listed}"
    # A first turn finds nothing, and should not send anybody looking.
    amiss = [word for word in common if word != "local" and (word, misses[word]) != _FIRST]
    return text, cause(amiss[0]).cure if amiss else ""


_FIRST = ("nothing_held", 1)
_SPANS = (Requested, RequestEnded, TurnEnded)
"""What a session lasts by; what becomes of its KV afterwards is not its own time."""


def _misses(items: Sequence[StoryItem]) -> dict[str, int]:
    """Requests that pulled nothing, by the last cause on record of each."""
    last: dict[str, str] = {}
    for one in items:
        match one.body:
            case RequestEnded() as end if end.pulled_tokens:
                last.pop(end.request, None)
            case Requested() | RequestEnded() if one.body.miss:
                last[one.body.request] = one.body.miss.partition("@")[0]
    words = list(last.values())
    return {word: words.count(word) for word in dict.fromkeys(words)}


def conclude_transfer(transfer: str, items: Sequence[StoryItem]) -> tuple[str, str]:
    """How a transfer went, what its source says of it, and the cure if it failed.

    Args:
        transfer: its id.
        items: its story, in order.
    """
    parts: list[str] = []
    cure = ""
    asked = next((one for one in items if isinstance(one.body, Requested)), None)
    if asked is not None and isinstance(asked.body, Requested):
        parts.append(f"transfer {transfer}: {_begun(asked.node, asked.body)}")
    ended = False
    for one in items:
        match one.body:
            case Transferred() as moved:
                ended = True
                parts.append(
                    f"{counted(moved.count, 'block')} arrived over {moved.backend} in "
                    f"{duration(moved.total_ms)} and were used"
                )
            case TransferFailed() as lost:
                ended = True
                parts.append(f"it failed at {lost.stage}: {failure(lost)}; the prompt was computed")
                cure = cure_of("transfer_failed", lost.reason, lost.source)
            case PinEnded() as pin:
                why = PIN_ENDS.get(pin.how, pin.how)
                held = f"held them for {duration(pin.held_ms)}" if pin.granted else "lent none"
                parts.append(f"{one.node} {held} and says: {why}")
    if not ended:
        parts.append("its outcome is not on record: it still runs, or its target is gone")
    return "; ".join(parts), cure


def _begun(node: str, asked: Requested) -> str:
    """What was known when it began: by a hint nobody had been asked yet."""
    blocks = f"{asked.granted:,} of {counted(asked.wanted, 'block')}"
    for_whom = f"for request {asked.request}{predicted(asked)}"
    if asked.source == node:
        return f"{node} began to load {blocks} from its own host tier {for_whom}"
    by = f" by {asked.basis}" if asked.basis else ""
    return f"{node} began to pull {blocks} from {asked.source}{by} {for_whom}"
