"""What ``kvferry demo --tilert`` runs with."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_connectors.demo.settings import DemoSettings
from kvferry_connectors.demo.tilert.model import POSITIONS
from kvferry_connectors.demo.tilert.profile import LAYERS

NODES = ("t0", "t1")
NATIVE = "d0"
ROW_BYTES = 1_152
"""Of one token and layer in bfloat16."""
TOKEN_BYTES = LAYERS * ROW_BYTES


@dataclass(frozen=True, kw_only=True)
class TilertDemoSettings(DemoSettings):
    """Sizes are in tokens, times in seconds unless a name says otherwise."""

    dtype: str = "bfloat16"
    block: int = 16
    """The only one of vLLM's kernel for latent attention on a CPU."""
    turns: tuple[int, ...] = (203, 411, 702, 1_023)
    """Prompt lengths of the streamed conversation."""
    whole_turns: tuple[int, ...] = (157, 333)
    """Of the one that is not streamed."""
    case_turns: tuple[int, ...] = (181, 317, 449)
    """Of the conversation whose nodes are drained and killed."""
    answer: int = 24
    max_model: int = POSITIONS
    step: int = POSITIONS
    long_prefill: int = POSITIONS // 2
    prefill_pool: int = 8 * POSITIONS
    decode_pool: int = 8 * POSITIONS
    node_bytes: int = 64 << 20
    """Host memory of a TileRT node for the blocks that it keeps."""
    return_within_ms: int = 30_000
    """For rows to be copied out of a node's engine. The default is meant for machines that have
    cores to themselves."""
    staging_bytes: int = 64 << 20
    slot_wait_s: float = 3.0
    """For a slot, before a request is answered 429."""
    left_s: float = 60.0
    """For a killed node to be declared gone."""

    def pool_bytes(self, tokens: int) -> int:
        """KV memory for so many tokens."""
        return tokens * TOKEN_BYTES
