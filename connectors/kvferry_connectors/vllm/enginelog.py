"""Our log lines where vLLM's are: it configures only its own logger."""

from __future__ import annotations

import logging


def use_engine_log() -> None:
    """Send what ``kvferry`` logs to the engine's handlers."""
    ours, engine = logging.getLogger("kvferry"), logging.getLogger("vllm")
    if not ours.handlers and engine.handlers:
        for handler in engine.handlers:
            ours.addHandler(handler)
        ours.setLevel(engine.getEffectiveLevel())
        ours.propagate = False
