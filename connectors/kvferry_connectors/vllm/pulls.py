"""The target's side: where a request's prefix could come from, and whether to fetch it.

``begin``, ``answer``, ``commit`` and ``drop`` run on the engine thread and never touch the
network; pins are made on threads of our own, plans on the node agent's.
"""

from __future__ import annotations

import itertools
import logging
import time

from kvferry.core.events import Requested
from kvferry.node.hints import Hint, HintRefused
from kvferry.node.outbox import Outbox
from kvferry_connectors.vllm.joined import Joined
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.metadata import LoadJob
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

log = logging.getLogger("kvferry.vllm")


class Pulls:
    """All pulls of one engine."""

    def __init__(
        self,
        options: Options,
        outbox: Outbox,
        looker: Looker,
        *,
        block_size: int,
        incarnation: str,
    ) -> None:
        self._options = options
        self._outbox = outbox
        self._looker = looker
        self._block_size = block_size
        self._prefix = incarnation
        self._counter = itertools.count(1)
        self._loading: dict[bytes, str] = {}
        """First hash that a load fills, to the request that owns the load."""
        self._open: dict[str, Tracked] = {}

    # --- engine thread ----------------------------------------------------------------------

    def begin(self, tracked: Tracked, joined: Joined, mode: str) -> None:
        """A request arrived: start to look for its prefix."""
        tracked.miss = self._refusal(tracked, mode)
        if tracked.miss:
            return
        hint, miss = self._read_hint(tracked, joined)
        if hint is not None and hint.node == joined.node:
            hint = None  # Our own blocks: the local prefix cache has them or nobody does.
        if hint is None and not self._looker.has_plans():
            tracked.miss = miss or "no_coordinator"
            return
        if not self._outbox.reserve():
            tracked.miss = "outbox_full"
            return
        now = time.monotonic()
        transfer = f"{self._prefix}.{next(self._counter)}"
        pull = Pull(transfer, now + self._options.pin_timeout_ms / 1000, now)
        pull.slots.append(None)
        pull.joined, pull.miss = joined, miss
        tracked.pull = pull
        if hint is not None:
            self._looker.use_hint(tracked, pull, hint)
        else:
            pull.answer_by += self._options.plan_deadline_ms / 1000
            self._looker.ask_plan(tracked, pull)

    def answer(self, tracked: Tracked, local_tokens: int) -> int | None:
        """Tokens to pull beyond the local ones; None while the answer is not known yet."""
        pull = tracked.pull
        if pull is None or pull.state is PullState.ENDED:
            return 0
        if pull.state is PullState.LOOKING:
            if time.monotonic() < pull.answer_by:
                return None
            self.drop(tracked, pull.miss or "plan_late")
            return 0
        blocks = min(pull.granted, tracked.prompt_blocks)
        extra: int = blocks * self._block_size - local_tokens
        if extra < max(self._block_size, self._options.min_pull_tokens):
            self.drop(tracked, pull.miss or ("local" if local_tokens else "too_short"))
            return 0
        owner = self._loading.get(tracked.hashes[local_tokens // self._block_size])
        if owner is not None and owner != tracked.id:
            return None  # Somebody is loading this very block: wait, then hit it locally.
        return extra

    def commit(self, tracked: Tracked, local_blocks: int, targets: list[int]) -> LoadJob:
        """The scheduler allocated ``targets`` for blocks ``local_blocks`` and on: move them."""
        pull = tracked.pull
        assert pull is not None
        pull.state = PullState.LOADING
        tracked.start_block = local_blocks
        end = local_blocks + len(targets)
        self._loading[tracked.hashes[local_blocks]] = tracked.id
        self._open[pull.transfer] = tracked
        return LoadJob(
            transfer=pull.transfer,
            request=tracked.id,
            address=pull.address,
            incarnation=pull.incarnation,
            hashes=tuple(tracked.hashes[local_blocks:end]),
            start=local_blocks,
            target_blocks=tuple(targets),
            deadline_ms=self._options.transfer_timeout_ms,
        )

    def requested(self, tracked: Tracked) -> Requested:
        """What the ledger says of this request's admission."""
        pull = tracked.pull
        loading = pull is not None and pull.state is PullState.LOADING
        return Requested(
            request=tracked.id,
            transfer=pull.transfer if loading and pull else "",
            source=pull.source if pull else "",
            source_incarnation=pull.incarnation if pull else "",
            wanted=tracked.prompt_blocks,
            local_tokens=tracked.local_tokens,
            granted=pull.granted if pull else 0,
            basis=pull.basis if pull else "",
            predicted_ms=pull.predicted_ms if pull else 0.0,
            recompute_ms=pull.recompute_ms if pull else 0.0,
            options=pull.options if pull else (),
            miss="" if loading else tracked.miss or "nothing_held",
            session=tracked.session,
            external_id=tracked.params.id,
        )

    def drop(self, tracked: Tracked, miss: str) -> None:
        """The pull will not be used: free the source's pin and our reserved slot."""
        pull = tracked.pull
        if pull is None or pull.state in (PullState.ENDED, PullState.LOADING):
            return
        pull.cancelled = True
        pull.state = PullState.ENDED
        tracked.miss = miss
        self._looker.unreserve(pull)
        self._looker.abort(pull, miss)

    def end(self, tracked: Tracked) -> None:
        """The transfer has its outcome: siblings that waited may go on."""
        pull = tracked.pull
        assert pull is not None
        pull.state = PullState.ENDED
        self._open.pop(pull.transfer, None)
        first = tracked.hashes[tracked.start_block]
        if self._loading.get(first) == tracked.id:
            del self._loading[first]

    def by_transfer(self, transfer: str) -> Tracked | None:
        """The request that owns an open transfer."""
        return self._open.get(transfer)

    def open_count(self) -> int:
        """Transfers that have no outcome yet."""
        return len(self._open)

    def renew_waiting(self, waiting: list[Tracked], now: float) -> None:
        """Keep the pins of requests that wait for blocks, each third of their deadline."""
        for tracked in waiting:
            pull = tracked.pull
            if (
                pull is not None
                and pull.state is PullState.READY
                and pull.pinned_at
                and now - pull.pinned_at > self._options.pin_ms / 3000
            ):
                pull.pinned_at = now
                self._looker.renew(pull)

    # --- inner ------------------------------------------------------------------------------

    def _refusal(self, tracked: Tracked, mode: str) -> str:
        if tracked.params.reuse == "off" or mode == "paused":
            return "paused"
        if not tracked.shareable:
            return "unshareable"
        if tracked.prompt_blocks == 0:
            return "too_short"
        return ""

    def _read_hint(self, tracked: Tracked, joined: Joined) -> tuple[Hint | None, str]:
        if tracked.params.hint is None:
            return None, ""
        try:
            return joined.hints.read(tracked.params.hint, int(time.time() * 1000)), ""
        except HintRefused as refused:
            log.info("request %s: hint ignored: %s", tracked.id, refused.reason)
            return None, refused.reason
