"""What requests and turns add up to, and what they teach about prefill and sessions."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.cost import PrefillCost
from kvferry.core.events import RequestEnded, SendBegan, SendEnded, TurnEnded
from kvferry.core.retention_gaps import SessionGaps
from kvferry.core.state import RATES_MAX, NodeState, SpaceState
from kvferry.core.totals import add

TOOK_MS_MAX = 1e10
"""A request that says it took longer than this, a third of a year, says nothing."""


def request_ended(
    space: SpaceState, node: NodeState, applied: Applied, event: RequestEnded
) -> None:
    """Tokens by where they came from, and apart from them those that were sent; the prefill rate
    when enough were computed."""
    totals = space.totals
    totals.requests = add(totals.requests, 1)
    if event.prompt_sent:
        totals.prompt_sent = add(totals.prompt_sent, event.prompt_tokens)
    else:
        totals.prompt_tokens = add(totals.prompt_tokens, event.prompt_tokens)
        totals.local_tokens = add(totals.local_tokens, event.local_tokens)
        totals.pulled_tokens = add(totals.pulled_tokens, event.pulled_tokens)
        totals.computed_tokens = add(totals.computed_tokens, event.computed_tokens)
    totals.output_tokens = add(totals.output_tokens, event.output_tokens)
    came = event.local_tokens + event.pulled_tokens + event.computed_tokens
    if came != event.prompt_tokens:
        totals.unbalanced = add(totals.unbalanced, 1)
    # Older nodes do not say when computing began; what they waited for before counts as computing.
    took_ms = event.prefill_ms or event.ttft_ms - event.pull_ms
    before = event.local_tokens + event.pulled_tokens
    learn_prefill(space.prefill, node.name, event.computed_tokens, before, took_ms)
    if event.session:
        _learn_gaps(space.sessions, applied.position.stored_ms, event)


def _learn_gaps(sessions: SessionGaps, stored_ms: int, event: RequestEnded) -> None:
    """A request of a session began and ended, on one of the engines of its turn."""
    took_ms = max(event.total_ms, event.ttft_ms)
    if not 0.0 <= took_ms <= TOOK_MS_MAX:
        took_ms = 0.0  # Written so that NaN fails too.
    began_ms = stored_ms - int(took_ms)
    sessions.turn(event.session, event.external_id, began_ms, stored_ms, event.prompt_tokens)
    if event.session_over:
        sessions.ended(event.session, stored_ms)


def learn_prefill(
    prefill: dict[str, PrefillCost], node: str, tokens: int, before: int, time_ms: float
) -> None:
    """Observe that ``node`` computed ``tokens`` tokens after ``before``; the oldest node gives way
    above the bound."""
    known = prefill.get(node)
    fresh = PrefillCost() if known is None else known
    if not fresh.observe(tokens, before, time_ms) or known is not None:
        return
    if len(prefill) >= RATES_MAX:
        del prefill[next(iter(prefill))]
    prefill[node] = fresh


def turn_ended(space: SpaceState, node: NodeState, applied: Applied, event: TurnEnded) -> None:
    """A router answered a client."""
    space.totals.turns = add(space.totals.turns, 1)


def send(
    space: SpaceState, node: NodeState, applied: Applied, event: SendBegan | SendEnded
) -> None:
    """KV goes to a decode node that is none of the space's: it is counted, and nothing that anybody
    decides depends on it."""
    if isinstance(event, SendEnded) and not event.reason:
        space.totals.bytes_sent = add(space.totals.bytes_sent, event.bytes)
