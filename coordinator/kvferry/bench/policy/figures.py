"""What one run counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from kvferry.bench.results import percentile
from kvferry.replay.trace import BLOCK_TOKENS


class Figures(msgspec.Struct, kw_only=True):
    """Counts of one policy with one budget. Tokens are those of prompts."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    """Not computed, because their KV was there or came from another engine or tier."""
    computed_tokens: int = 0
    prefill_s: float = 0.0
    """Time that prefill engines computed."""
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    """Blocks computed again, by why their KV was not of use."""
    pulled_blocks: int = 0
    """Blocks that prefill engines got from elsewhere."""
    delayed: int = 0
    """Times that a request waited for memory of an engine."""
    stalled_s: float = 0.0
    """Sum of these waits."""
    ttft_s: list[float] = []
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    """Leases and pins that ended, by reason."""
    sent_late_s: float = 0.0
    """Sum of the delays of turns that could not be sent in time, for the answer before them was
    late."""
    last_end_s: float = 0.0
    """When the last answer was complete."""

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of full blocks computed although they had been computed before."""
        return sum(self.lost.values()) * BLOCK_TOKENS

    def document(self, moved: Counter[str]) -> dict[str, Any]:
        """The figures as they stand in ``rows[]``; times in seconds, sizes in bytes."""
        ttft = sorted(self.ttft_s)
        return {
            "requests": len(ttft),
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "computed_tokens": self.computed_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "prefill_s": round(self.prefill_s, 3),
            "recomputed_by_cause": {
                cause: count * BLOCK_TOKENS for cause, count in sorted(self.lost.items())
            },
            "pulled_tokens": self.pulled_blocks * BLOCK_TOKENS,
            "bytes_by_link": dict(sorted(moved.items())),
            "requests_delayed": self.delayed,
            "stalled_s": round(self.stalled_s, 3),
            "sent_late_s": round(self.sent_late_s, 3),
            "ended_by_reason": dict(sorted(self.ended.items())),
            "last_end_s": round(self.last_end_s, 3),
            "ttft_s_p50": round(percentile(ttft, 0.5), 4),
            "ttft_s_p95": round(percentile(ttft, 0.95), 4),
            "ttft_s_p99": round(percentile(ttft, 0.99), 4),
        }
