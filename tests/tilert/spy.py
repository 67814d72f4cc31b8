"""An engine for TileRT's decode server that records what it is given and answers as told.

It stands in for the real engine, which needs eight GPUs, and has the public interface of the
stub that the package ships.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

PAUSE_S_MAX = 120.0
_POLL_S = 0.005


class SpyEngine:
    """Saves every injected request, and generates ``tokens`` over and over.

    Files of ``folder`` steer it while it runs:

    - ``inject-<n>.pt``: what the ``n``-th inject got, readable once it is there;
    - ``pause``: while it exists, generation waits after ``pause_after`` tokens;
    - ``decoding``: exists while a request is generated.
    """

    def __init__(
        self, folder: Path, tokens: list[int], *, stop_after: int = 0, pause_after: int = 2
    ) -> None:
        self._folder = folder
        self._tokens = tokens
        self._stop_after = stop_after
        self._pause_after = pause_after
        self._injected = 0
        self.last_stats: dict[str, Any] = {}

    def inject(self, req: Any) -> None:
        """Keep a copy of ``req`` in a file: rid, lengths, sampling and per layer ki, kv, pe."""
        import torch

        whole = {
            "rid": req.rid,
            "seq_len": req.seq_len,
            "last_prompt_token": req.last_prompt_token,
            "first_token_id": req.first_token_id,
            "sampling": req.sampling,
            "layers": [tuple(part.clone() for part in layer) for layer in req.layers],
        }
        path = self._folder / f"inject-{self._injected}.pt"
        torch.save(whole, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
        self._injected += 1

    def prepare_grammar(self, grammar_spec: Any, enable_thinking: bool = True) -> None:
        """No grammar, as the shipped engines."""
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
        on_token: Any = None,
        cancel_event: Any = None,
        grammar_session: Any = None,
    ) -> list[int]:
        """The first token, then ``tokens`` in a circle; ends as the shipped engines do."""
        wanted = itertools.chain([first_token_id], itertools.cycle(self._tokens))
        limit = min(max_tokens, self._stop_after or max_tokens)
        made: list[int] = []
        self.last_stats = {"finish_reason": "stop" if limit < max_tokens else "length"}
        (self._folder / "decoding").touch()
        try:
            for token in itertools.islice(wanted, limit):
                if len(made) >= self._pause_after:
                    self._wait_while_paused(cancel_event)
                if cancel_event is not None and cancel_event.is_set():
                    self.last_stats = {"finish_reason": "cancelled"}
                    break
                made.append(token)
                if on_token is not None:
                    on_token(token)
        finally:
            (self._folder / "decoding").unlink(missing_ok=True)
        return made

    def reset(self) -> None:
        """Nothing is kept between requests."""

    def _wait_while_paused(self, cancel_event: Any) -> None:
        deadline = time.monotonic() + PAUSE_S_MAX
        while (self._folder / "pause").exists():
            if cancel_event is not None and cancel_event.is_set():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"paused for {PAUSE_S_MAX:.0f} s: the test forgot the engine")
            time.sleep(_POLL_S)
