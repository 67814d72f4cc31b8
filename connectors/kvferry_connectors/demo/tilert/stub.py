"""An engine for TileRT's decode server that generates nothing of worth: the real one needs eight
GPUs.

Its tokens are drawn, and the rows that it gives for them are copies of the prompt's: they have the
shape and the length of KV, and mean nothing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry_connectors.demo.texts import END_TOKEN, FIRST_TOKEN

FOLDER = "TILERT_DEMO_FOLDER"
"""Environment: the folder with the files that steer the engine."""
PAUSE, DECODING = "pause", "decoding"
"""While the first exists, generation waits after :data:`PAUSE_AFTER` tokens; the second exists
while a request is generated."""
PAUSE_AFTER = 2
PAUSE_S_MAX = 120.0
POLL_S = 0.01

Layers = list[tuple[Any, Any, Any]]


class StubEngine:
    """TileRT's engine interface, and the rows of what was generated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layers: Layers = []
        self._length = 0
        self.last_stats: dict[str, Any] = {}

    def inject(self, req: Any) -> None:
        """A prompt's KV."""
        self._layers, self._length = list(req.layers), int(req.seq_len)

    def prepare_grammar(self, grammar_spec: Any, enable_thinking: bool = True) -> None:
        """No grammar, as the engines that TileRT ships."""
        from tilert.pd_vllm.grammar_spec import GrammarUnsupported

        if grammar_spec is not None:
            raise GrammarUnsupported("constrained decoding is not supported")

    def supports_logprobs(self) -> bool:
        return False

    def supports_penalties(self) -> bool:
        return False

    def supports_ignore_eos(self) -> bool:
        return True

    def decode(
        self,
        first_token_id: int,
        max_tokens: int,
        sampling: Any,
        on_token: Callable[[int], Any] | None = None,
        cancel_event: Any = None,
        grammar_session: Any = None,
        **more: Any,
    ) -> list[int]:
        """The first token, then drawn ones, the same for the same prompt length and first token."""
        draw = random.Random(f"{first_token_id} {self._length}")
        made: list[int] = []
        self.last_stats = {"finish_reason": "length"}
        (self._folder / DECODING).touch()
        try:
            while len(made) < max_tokens:
                if len(made) == PAUSE_AFTER:
                    self._wait_while_paused(cancel_event)
                if cancel_event is not None and cancel_event.is_set():
                    self.last_stats = {"finish_reason": "cancelled"}
                    break
                made.append(draw.randrange(FIRST_TOKEN, END_TOKEN) if made else first_token_id)
                if on_token is not None:
                    on_token(made[-1])
        finally:
            (self._folder / DECODING).unlink(missing_ok=True)
        return made

    def export_rows(self, first: int, last: int) -> Layers:
        """Of each layer the rows of positions ``first`` to ``last - 1``: those of the prompt, over
        and over."""
        positions = [position % self._length for position in range(first, last)]
        return [(ki[positions], kv[positions], pe[positions]) for ki, kv, pe in self._layers]

    def reset(self) -> None:
        """Nothing is kept between requests but what the next one replaces."""

    def _wait_while_paused(self, cancel_event: Any) -> None:
        deadline = time.monotonic() + PAUSE_S_MAX
        while (self._folder / PAUSE).exists():
            if cancel_event is not None and cancel_event.is_set():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"paused for {PAUSE_S_MAX:.0f} s")
            time.sleep(POLL_S)


def make() -> StubEngine:
    """For ``kvferry tilert-node --engine``."""
    return StubEngine(Path(os.environ[FOLDER]))
