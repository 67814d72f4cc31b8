"""Prefills that another engine follows: their blocks are offered while they are computed.

A block is offered once its KV is surely written: a later step is being scheduled, and the
engine has taken in the output of the step that wrote it. The running request holds the block;
what becomes of it afterwards is the business of the offer at the request's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry.node.export.published import Published
from kvferry_connectors.vllm.exports import Exports
from kvferry_connectors.vllm.tracked import Tracked


def written_blocks(request: Any, tracked: Tracked, held: int, block_size: int) -> int:
    """Full blocks whose KV is surely written, of a request that ends and holds ``held`` blocks.

    Tokens in flight are not written yet, and the last sampled one never is.
    """
    if not tracked.computing:
        return 0  # A load, ours or another connector's, may still be filling them.
    computed = request.num_computed_tokens - request.num_in_flight_tokens
    whole = max(0, min(computed, request.num_tokens - 1)) // block_size
    return int(min(whole, len(tracked.hashes), held))


class _Growing:
    """A published request."""

    __slots__ = ("blocks", "ready", "request", "start", "tracked")

    def __init__(self, request: Any, tracked: Tracked) -> None:
        self.request = request
        self.tracked = tracked
        self.blocks: list[int] = []
        self.start = -1
        """Tokens with KV when it was first scheduled; -1 before."""
        self.ready = 0


class Publishing:
    """All published requests of one engine. Engine thread only; free while there are none."""

    def __init__(self, published: Published, exports: Exports, block_size: int) -> None:
        self._published = published
        self._exports = exports
        self._block_size = block_size
        self._growing: dict[str, _Growing] = {}

    def begin(self, request: Any, tracked: Tracked) -> None:
        """A request arrived; it is published if it asks for that and can be."""
        name = tracked.params.publish
        if not name or not tracked.shareable or self._exports.paused:
            return
        if self._published.begin(name, tracked.hashes, tracked.prompt_blocks):
            self._growing[tracked.id] = _Growing(request, tracked)

    def scheduled(self, output: Any, requests: Mapping[str, Tracked]) -> None:
        """A step is scheduled: offer what the steps before it have written, and what was pulled."""
        for new in output.scheduled_new_reqs:
            tracked = requests.get(new.req_id)
            if tracked is not None and tracked.pulled_tokens and tracked.shareable:
                # Its last block is written once more where the whole prompt was pulled.
                had = min(tracked.local_tokens + tracked.pulled_tokens, tracked.prompt_tokens - 1)
                self._exports.offer_pulled(tracked, new.block_ids[0], had // self._block_size)
        if not self._growing:
            return
        for name in output.preempted_req_ids or ():
            # Its blocks may go to others in this very step, and it starts again from the cache.
            self._end(name)
        self._take_blocks(output)
        scheduled = output.num_scheduled_tokens
        for name, one in list(self._growing.items()):
            if one.start >= 0:
                self._grow(one, scheduled.get(name, 0))

    def ended(self, tracked: Tracked, offered: int) -> None:
        """The request left the engine; its first ``offered`` blocks are offered."""
        self._end(tracked.id, offered)

    def clear(self) -> None:
        """Nothing is offered any more."""
        for name in list(self._growing):
            self._end(name, 0)

    def _take_blocks(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            one = self._growing.get(new.req_id)
            if one is not None:
                one.start, one.blocks = new.num_computed_tokens, list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            one = self._growing.get(name)
            if one is not None and added:
                one.blocks += added[0]

    def _grow(self, one: _Growing, scheduled: int) -> None:
        request, tracked = one.request, one.tracked
        # Without this step: vLLM counts its tokens once the connector has been asked.
        written = request.num_computed_tokens - request.num_in_flight_tokens
        whole = min(written // self._block_size, tracked.prompt_blocks, len(one.blocks))
        # What it began with may itself be written by the step that it began in.
        if written > one.start and whole > one.ready:
            self._exports.offer_written(tracked, one.blocks, one.ready, whole)
            one.ready = whole
        if one.ready == tracked.prompt_blocks:
            self._end(tracked.id)
            return
        last = request.num_computed_tokens + scheduled >= tracked.prompt_tokens
        self._published.grown(tracked.params.publish, one.ready, last=last)

    def _end(self, name: str, offered: int | None = None) -> None:
        one = self._growing.pop(name, None)
        if one is not None:
            ready = one.ready if offered is None else offered
            self._published.end(one.tracked.params.publish, ready)
