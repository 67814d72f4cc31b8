"""What a made history looks like, and what it adds up to."""

from __future__ import annotations

import msgspec

from kvferry.errors import ConfigError

SPACE = "bench-000000000000"
BLOCK_BYTES = 2 * 1024 * 1024
"""16 tokens of a model of 8 B parameters in bfloat16."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What the conversations look like.

    Raises:
        ConfigError: a figure makes no sense; names its option.
    """

    nodes: int = 8
    """Half of them prefill, half decode."""
    first_tokens: int = 4_096
    """Prompt of a conversation's first turn."""
    turn_tokens: int = 512
    """What every turn adds, three quarters of it prompt and the rest answer."""
    turns: int = 8
    step_tokens: int = 2_048
    """Of a prompt that one step computes."""
    block_size: int = 16
    pool_blocks: int = 40_960
    """Of each node."""
    turns_per_look: int = 2
    """Turns whose facts share a node's message: 20 turns a second, looked at every 100 ms."""

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.nodes % 2:
            raise ConfigError(f"--nodes {self.nodes}: use an even number, 2 or more")
        for name in ("first_tokens", "turn_tokens", "turns", "pool_blocks", "turns_per_look"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise ConfigError(f"{option} {getattr(self, name)}: use 1 or more")
        whole = (self.first_tokens + self.turns * self.turn_tokens) // self.block_size
        if self.pool_blocks < 2 * whole:
            raise ConfigError(
                f"--pool-blocks {self.pool_blocks} holds not even two conversations of {whole} "
                f"blocks; use {2 * whole} or more"
            )


class Message(msgspec.Struct, frozen=True):
    """One message for the ledger."""

    subject: str
    data: bytes
    message_id: str


class Written(msgspec.Struct):
    """What a history adds up to."""

    block_events: int = 0
    """Blocks that a node came to hold, plus blocks that it gave up: what an engine that publishes
    single blocks would have sent."""
    facts: int = 0
    messages: int = 0
    bytes: int = 0
    """Of the messages' bodies."""
    detail: int = 0
    """Events of the blocks lane, which lies in a stream of its own."""
    detail_bytes: int = 0
    turns: int = 0
