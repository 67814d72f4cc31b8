"""What happened to requests and turns."""

from __future__ import annotations

from kvferry.core.events.base import Event


class RequestEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A request left the engine; local + pulled + computed = prompt tokens."""

    request: str
    external_id: str = ""
    session: str = ""
    prompt_tokens: int = 0
    local_tokens: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    outcome: str = "stop"
    """``stop``, ``length``, ``aborted``, ``error``."""
    source: str = ""
    miss: str = ""
    pull_ms: float = 0.0
    prefill_ms: float = 0.0
    """From the first step that computed its prompt to the first token; 0 where it is not known."""
    total_ms: float = 0.0
    """From its arrival to its end; 0 where it is not known."""
    session_over: bool = False
    """The client said that this was its session's last turn."""
    kept_blocks: int = 0
    """By a TileRT node: how many blocks of prompt and answer it keeps for the next turn."""
    not_kept: str = ""
    """By a TileRT node that keeps none: why, in one word."""

    @property
    def prompt_sent(self) -> bool:
        """The prompt's KV was sent to the node as a whole, so it counts as local there: the node is
        a TileRT node, which says of each request what it keeps of it."""
        return bool(self.kept_blocks or self.not_kept)


class TurnEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A router answered one turn; joins the ids of both engines."""

    request: str
    session: str = ""
    prefill_node: str = ""
    decode_node: str = ""
    prefill_request: str = ""
    decode_request: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    outcome: str = "ok"
    reuse: str = ""
    """The ``x-kvferry`` header as the client saw it."""
