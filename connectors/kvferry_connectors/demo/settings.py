"""What the demo runs with: sizes, bounds, and where it keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvferry_connectors.demo.model import SMALL, Shape

MODEL_NAME = "demo"
PREFILL = "p0"
DECODES = ("d0", "d1")
HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Sizes are in tokens, times in seconds unless a name says otherwise."""

    folder: Path
    """Where a run keeps its state; each run uses a folder of its own below it."""
    cache: Path
    """Where the model is kept between runs."""
    keep: bool = False
    """Leave the run's folder behind."""
    shape: Shape = SMALL
    dtype: str = "float32"
    block: int = 32
    turns: tuple[int, ...] = (1_037, 2_311, 3_547, 4_789, 6_011)
    """Prompt length of each turn of the two conversations."""
    answer: int = 24
    case_turns: tuple[int, ...] = (1_523, 2_131, 2_683, 3_203)
    """Prompt lengths of the conversation that loses its reasoning, and then its decode engine."""
    reasoning: int = 64
    """Tokens of the answer whose reasoning is stripped that are reasoning."""
    edited_at: int = 2_250
    """First token of the history that the edit changes."""
    edited_tokens: int = 40
    max_model: int = 6_144
    prefill_pool: int = 6_400
    """So small that the requests between two turns take every block of P's own cache."""
    filler: int = 2_048
    """Longest prompt of the other users, who fill P's pool between two turns."""
    filler_least: int = 256
    """So much of them comes before every turn, even where P's pool turned over anyway."""
    decode_pool: int = 49_152
    step: int = 2_048
    """``--max-num-batched-tokens``."""
    long_prefill: int = 1_024
    """Below ``step``, so that pulls start while a long prefill runs."""
    start_s: float = 480.0
    """For an engine to answer, on a machine where others run too."""
    model_s: float = 120.0
    answer_s: float = 120.0
    ledger_s: float = 20.0
    """For what a turn did to be in the ledger."""
    stop_s: float = 15.0
    """For a process to stop when asked; then it is killed."""
    plan_ms: int = 1_000
    """For a plan. kvferry's own default is meant for engines that have cores to themselves."""
    pin_ms: int = 5_000
    """For a source's answer to a pin, for the same reason."""

    def pool_bytes(self, tokens: int) -> int:
        """KV memory for so many tokens in float32."""
        shape = self.shape
        return tokens * shape.layers * 2 * shape.kv_heads * shape.head_dim * 4
