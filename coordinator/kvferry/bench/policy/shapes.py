"""What a model on its engine costs: KV bytes a token, time to compute and to move.

The 8B figures are fitted to what two H200 showed for a Llama-8B shape. Those of the 70B shape are
derived from its size (four H200 an engine, 45 % of their peak), not measured.
"""

from __future__ import annotations

from typing import Final

import msgspec

GB: Final = 1_000_000_000


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model on one engine. Rates are those of the whole engine, all its ranks together."""

    name: str
    token_bytes: int
    """KV bytes of a token."""
    prefill: int
    """Prefill engines in the pool by default."""
    decode: int
    """Decode engines."""
    hbm_bytes: int
    """GPU memory of an engine that is left for KV."""
    token_s: float
    """Prefill time of a token without context."""
    context_s: float
    """Prefill time that each token of context adds to each token computed."""
    request_s: float
    """Fixed part of a request's time on an engine: tokenising, scheduling, one step."""
    step_s: float
    """Time between two tokens of an answer."""
    link_bytes_s: float
    """Between two engines."""
    link_floor_s: float
    """Fixed part of a move: asking, pinning, descriptors."""
    host_bytes_s: float
    """Between an engine's GPUs and its host memory."""

    def on(self, *, hbm_gb: float) -> Shape:
        """The same with another GPU memory for KV; 0 leaves it as it is."""
        return msgspec.structs.replace(self, hbm_bytes=int(hbm_gb * GB)) if hbm_gb else self

    def prefill_s(self, tokens: int, context: int) -> float:
        """Time to compute ``tokens`` behind ``context`` tokens whose KV is there."""
        mean_context = context + tokens / 2
        return self.request_s + tokens * (self.token_s + self.context_s * mean_context)


SHAPES: Final = {
    "8b": Shape(
        name="8b",
        token_bytes=131_072,
        prefill=2,
        decode=2,
        hbm_bytes=100 * GB,
        token_s=23.9e-6,
        context_s=0.914e-9,
        request_s=0.02,
        step_s=0.012,
        link_bytes_s=45e9,
        link_floor_s=0.003,
        host_bytes_s=50e9,
    ),
    "70b": Shape(
        name="70b",
        token_bytes=327_680,
        prefill=6,
        decode=2,
        hbm_bytes=360 * GB,
        token_s=79e-6,
        context_s=1.5e-9,
        request_s=0.03,
        step_s=0.025,
        link_bytes_s=180e9,
        link_floor_s=0.003,
        host_bytes_s=200e9,
    ),
}
