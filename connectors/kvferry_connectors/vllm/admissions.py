"""Requests that hold blocks but cannot compute their prompt yet: leases must not starve them.

vLLM asks a connector about a request when it first looks for its blocks, and not again: a request
whose load has arrived allocates the blocks of its tail without a word. And it admits a load only
where the blocks that other prefills still need stay free. Both are therefore kept free of leases
ahead of time.
"""

from __future__ import annotations

from typing import Any

from kvferry_connectors.vllm.tracked import Tracked


class Admissions:
    """Requests between their first blocks and the end of their prompt. Engine thread only."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._filling: dict[str, Any] = {}

    def allocated(self, request: Any, tracked: Tracked) -> None:
        """The scheduler gave the request blocks, perhaps not all that its prompt needs."""
        tracked.computing = False
        self._filling[tracked.id] = request

    def scheduled(self, output: Any, requests: dict[str, Tracked]) -> None:
        """A step was scheduled: note who computes now, and on top of how many tokens."""
        for new in output.scheduled_new_reqs:
            tracked = requests.get(new.req_id)
            if tracked is not None:
                tracked.scheduled(new.num_computed_tokens)
        for resumed in output.scheduled_cached_reqs.resumed_req_ids:
            tracked = requests.get(resumed)
            if tracked is not None:
                tracked.computing = True

    def gone(self, request: str) -> None:
        """The request left the engine."""
        self._filling.pop(request, None)

    def needed(self, but: str = "") -> int:
        """Blocks that these requests will still allocate for their prompts; ``but`` is left out."""
        full = [r for r in self._filling.values() if r.num_computed_tokens >= r.num_tokens - 1]
        for request in full:
            del self._filling[request.request_id]
        return sum(
            self.whole(request) - request.num_computed_tokens // self._block_size
            for name, request in self._filling.items()
            if name != but
        )

    def whole(self, request: Any) -> int:
        """Blocks that the request needs in all, its next token's included."""
        return int(request.num_tokens // self._block_size) + 1
