"""What computing and moving cost, where nobody has measured it."""

from __future__ import annotations

import msgspec

from kvferry.errors import ConfigError

PREFILL_TOKENS_PER_S = 30_000.0
"""An 8B model on one H200 with prompts of some thousand tokens."""
KV_BYTES_PER_TOKEN = 131_072
"""Llama 3 8B in bfloat16: 32 layers, 8 heads of 128, keys and values."""
LINK_GB_PER_S = 10.0
"""Most of what a network of 100 Gbit/s carries."""
MOVE_FLOOR_S = 0.003
"""Asking, pinning and confirming, whatever the size."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Rates that a model of a fleet needs.

    Raises:
        ConfigError: a figure makes no sense; names its option.
    """

    prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S
    kv_bytes_per_token: int = KV_BYTES_PER_TOKEN
    link_gb_per_s: float = LINK_GB_PER_S

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "kv_bytes_per_token", "link_gb_per_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: use a number above 0"
                )

    @property
    def link_bytes_s(self) -> float:
        """Of one link."""
        return self.link_gb_per_s * 1e9

    def compute_s(self, tokens: int) -> float:
        """To compute so many tokens of a prompt."""
        return tokens / self.prefill_tokens_per_s

    def move_s(self, tokens: int) -> float:
        """To move the KV of so many tokens over an idle link; 0 of none."""
        if not tokens:
            return 0.0
        return MOVE_FLOOR_S + tokens * self.kv_bytes_per_token / self.link_bytes_s

    def pays(self, tokens: int) -> bool:
        """Whether moving is faster than computing: otherwise kvferry computes."""
        return self.move_s(tokens) < self.compute_s(tokens)
