"""What requests and turns add up to, and what they teach about prefill."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.cost import PREFILL_TOKENS_MIN
from kvferry.core.events import RequestEnded, TurnEnded
from kvferry.core.evolve_transfers import learn
from kvferry.core.state import NodeState, SpaceState
from kvferry.core.totals import add


def request_ended(
    space: SpaceState, node: NodeState, applied: Applied, event: RequestEnded
) -> None:
    """Tokens by where they came from; the prefill rate when enough were computed."""
    totals = space.totals
    totals.requests = add(totals.requests, 1)
    totals.prompt_tokens = add(totals.prompt_tokens, event.prompt_tokens)
    totals.local_tokens = add(totals.local_tokens, event.local_tokens)
    totals.pulled_tokens = add(totals.pulled_tokens, event.pulled_tokens)
    totals.computed_tokens = add(totals.computed_tokens, event.computed_tokens)
    totals.output_tokens = add(totals.output_tokens, event.output_tokens)
    came = event.local_tokens + event.pulled_tokens + event.computed_tokens
    if came != event.prompt_tokens:
        totals.unbalanced = add(totals.unbalanced, 1)
    if event.computed_tokens >= PREFILL_TOKENS_MIN:
        seconds = (event.ttft_ms - event.pull_ms) / 1_000.0
        learn(space.prefill, node.name, event.computed_tokens, seconds)


def turn_ended(space: SpaceState, node: NodeState, applied: Applied, event: TurnEnded) -> None:
    """A router answered a client."""
    space.totals.turns = add(space.totals.turns, 1)
