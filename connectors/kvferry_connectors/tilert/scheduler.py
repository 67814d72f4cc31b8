"""The scheduler's side: claims marked requests and orders their sends. Hooks never wait."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections import deque
from typing import Any

from kvferry_connectors.tilert.claims import Claim
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.fitting import Fit
from kvferry_connectors.tilert.marks import KEY, claims
from kvferry_connectors.tilert.metadata import TileRTMetadata
from kvferry_connectors.tilert.options import Options
from kvferry_connectors.tilert.origins import Origins
from kvferry_connectors.tilert.outcomes import REFUSED, RankOutcome, SendOutcome
from kvferry_connectors.tilert.recording import Recording
from kvferry_connectors.tilert.reports import Inbox
from kvferry_connectors.tilert.sender import SENDS_MAX
from kvferry_connectors.tilert.turns import Turns

OUTCOME_GRACE_S = 5.0
"""How much later than a send can last its outcome is awaited."""
ABORTED = frozenset({"FINISHED_ABORTED", "FINISHED_ERROR"})

log = logging.getLogger("kvferry.tilert")


class SchedulerSide:
    """One per engine core. An unmarked request costs it one look at its parameters."""

    def __init__(self, options: Options, fitted: Fit | SendRefused, *, ranks: int) -> None:
        """``fitted`` says how the engine's cache goes over the wire, or why it does not; ``ranks``
        of the engine hold the same KV."""
        self._options = options
        self._ranks = min(ranks, options.senders)
        self._randomized = os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0") in ("", "0")
        self._fit = fitted
        if isinstance(fitted, SendRefused):
            log.warning("tilert: claimed requests will be refused: %s", fitted)
        self._turns = Turns(options.staging_bytes, SENDS_MAX)
        self._manager: Any = None
        self._inbox: Inbox | None = None
        self._claims: dict[str, Claim] = {}
        """Of requests that live."""
        self._open: dict[str, Claim] = {}
        """Those still to be ordered."""
        self._sending: dict[str, Claim] = {}
        """Ordered ones whose outcome is not known."""
        self._given: deque[str] = deque()
        """Requests whose staging memory is free again, as the inbox's thread hears."""
        self._cancels: list[str] = []
        self.recording: Recording | None = None
        """Where sends are recorded; set once, before the first request."""
        self.origins: Origins | None = None
        """What nodes are told of prompts; set once, before the first request."""

    def bind(self, manager: Any) -> None:
        """The engine's KV cache manager exists."""
        self._manager = manager

    # --- hooks ------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """A request arrived."""
        params = request.kv_transfer_params
        if not claims(params):
            return
        claim = Claim.of(request, params, randomized=self._randomized)
        self._claims[claim.id] = claim
        if self.recording is not None:
            self.recording.began(claim)
        fitted = self._fit
        if isinstance(fitted, SendRefused):
            claim.refuse(fitted)
        if isinstance(fitted, SendRefused) or claim.outcome is not None:
            self._over(claim)
            return
        if self._inbox is None:
            self._inbox = Inbox(self._heard)
        claim.measure(fitted, self._ranks)
        claim.waits_until = time.monotonic() + self._options.staging_wait_ms / 1000
        self._open[claim.id] = claim

    def may_start(self, request: Any) -> bool:
        """Whether the request may be computed now; a claimed one waits for staging memory."""
        if not self._open:
            return True
        claim = self._open.get(request.request_id)
        if claim is None:
            return True
        self._take_back()
        if self._turns.take(claim.id, claim.length):
            return True
        if time.monotonic() < claim.waits_until:
            return False
        waited = f"{self._options.staging_wait_ms} ms (option staging_wait_ms)"
        self._refuse(claim, SendRefused("staging_full", f"it was so for {waited}"))
        return True

    def build_meta(self, output: Any) -> TileRTMetadata:
        """Once a step: orders for prompts that this step completes."""
        meta = TileRTMetadata()
        if self._open:
            self._order(output.num_scheduled_tokens, meta)
        if self._cancels:
            meta.cancels, self._cancels = self._cancels, []
        return meta

    def finished(self, request: Any) -> dict[str, Any] | None:
        """A request ends, however it ends; what its reply says."""
        claim = self._claims.pop(request.request_id, None)
        if claim is None:
            return None
        if claim.open:
            self._refuse(claim, SendRefused("cancelled", "it ended before its prompt was computed"))
        elif claim.outcome is None and request.status.name in ABORTED:
            self._cancels.append(claim.id)
        return {KEY: claim.reply()}

    def close(self) -> None:
        """Stop listening; what has no outcome by then has none that anybody could tell."""
        if self._inbox is not None:
            self._inbox.close()
        for claim in [*self._open.values(), *self._sending.values()]:
            claim.refuse(SendRefused("closed", "the engine shut down before it was known to end"))
            self._over(claim)
        self._open.clear()
        self._sending.clear()
        if self.recording is not None:
            self.recording.close()

    # --- inner ------------------------------------------------------------------------------

    def _order(self, scheduled: dict[str, int], meta: TileRTMetadata) -> None:
        now = time.monotonic()
        for claim in list(self._open.values()):
            tokens = scheduled.get(claim.id)
            if tokens is None:
                continue
            request = claim.request
            if request.num_computed_tokens + tokens < request.num_prompt_tokens:
                continue
            if now >= claim.may_send_until:
                assert claim.mark is not None
                within = f"within_s={claim.mark.within_s:g} since the engine got the request"
                self._refuse(claim, SendRefused("late", within))
                continue
            del self._open[claim.id]
            claim.due = now + self._options.send_timeout_ms / 1000 + OUTCOME_GRACE_S
            self._sending[claim.id] = claim
            order = claim.order(self._manager.get_block_ids(claim.id), now)
            if self.origins is not None:
                said, claim.no_origin = self.origins.sampling(order.sampling, request, claim.rid)
                order = dataclasses.replace(order, sampling=said)
            meta.orders.append(order)
        if meta.orders and self._inbox is not None:
            meta.report_to = self._inbox.path

    def _refuse(self, claim: Claim, refused: SendRefused) -> None:
        self._open.pop(claim.id, None)
        self._turns.give(claim.id)
        claim.refuse(refused)
        self._over(claim)

    def _take_back(self) -> None:
        """Turns of sends that ended, or that nobody tells of any more."""
        while self._given:
            self._turns.give(self._given.popleft())
        now = time.monotonic()
        for claim in list(self._sending.values()):
            if now > claim.due and self._sending.pop(claim.id, None) is not None:
                claim.refuse(SendRefused("untold"))
                self._turns.give(claim.id)
                self._over(claim)

    def _heard(self, part: RankOutcome) -> None:
        # On the inbox's thread.
        claim = self._sending.get(part.request)
        if claim is None or not claim.heard(part, self._ranks):
            return
        self._sending.pop(part.request, None)
        self._given.append(part.request)
        self._over(claim)

    def _over(self, claim: Claim) -> None:
        """It has its outcome. On the inbox's thread or the engine's."""
        assert claim.outcome is not None
        if self.recording is not None:
            self.recording.ended(claim, claim.outcome)
        _log_outcome(claim.outcome)


def _log_outcome(outcome: SendOutcome) -> None:
    if outcome.state == REFUSED:
        log.warning(
            "tilert request=%s rid=%s to=%s refused: %s: %s",
            outcome.request,
            outcome.rid,
            outcome.target,
            outcome.reason,
            outcome.detail,
        )
        return
    log.info(
        "tilert request=%s rid=%s to=%s sent %d tokens, %d bytes in %.0f ms",
        outcome.request,
        outcome.rid,
        outcome.target,
        outcome.tokens,
        outcome.bytes,
        outcome.total_ms,
    )
