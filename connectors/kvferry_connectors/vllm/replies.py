"""What a request leaves behind at its end: an offer, perhaps a lease, a report and a hint."""

from __future__ import annotations

import time
from typing import Any

from kvferry.node.peers.hints import Hint
from kvferry_connectors.vllm.exports import Exports
from kvferry_connectors.vllm.joined import Joiner
from kvferry_connectors.vllm.looking import OBSERVE
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Tracked


class Replies:
    """Makes our part of a reply's ``kv_transfer_params``. Runs on the engine thread."""

    def __init__(self, node: str, options: Options, joiner: Joiner) -> None:
        self._node = node
        self._options = options
        self._joiner = joiner
        self.exports: Exports | None = None
        """Set once the engine's block pool exists."""

    def reply(
        self, tracked: Tracked, request: Any, ids: list[int], blocks: int, mode: str
    ) -> dict[str, Any]:
        """Offer the first ``blocks`` of the request's blocks ``ids``, and say what happened."""
        said: dict[str, Any] = {"report": tracked.report(self._node)}
        hint = self._offer(tracked, request, ids, blocks, mode)
        if hint is not None:
            said["hint"] = hint
        return said

    def _offer(
        self, tracked: Tracked, request: Any, ids: list[int], blocks: int, mode: str
    ) -> dict[str, Any] | None:
        """Offer, and lease what another engine is about to read; returns the signed hint."""
        joined, exports = self._joiner.joined, self.exports
        if exports is not None and tracked.params.end:
            exports.leasing.session_ended(tracked.scope)
        if joined is None or exports is None or blocks == 0 or not tracked.shareable:
            return None
        handover = tracked.params.handover or request.max_tokens == 1
        awaited = handover and request.status.name != "FINISHED_ABORTED"
        offer, held = exports.offer(tracked, ids, blocks, awaited=awaited)
        if not held:
            return None
        if mode == "paused":
            return None
        return joined.hints.sign(
            Hint(
                node=joined.node,
                space=joined.space,
                address=joined.address,
                incarnation=joined.incarnation,
                offer=offer,
                blocks=held,
                tail=bytes(tracked.hashes[held - 1]),
                expires_ms=int(time.time() * 1000) + self._options.hint_ttl_s * 1000,
                tier=OBSERVE if mode == OBSERVE else "cache",
            )
        )
