"""The sends of one rank: begun on the engine's thread, carried out on threads of their own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvferry.ports.remote_writer import RemoteWriter
from kvferry_connectors.tilert.admission import Wanted
from kvferry_connectors.tilert.errors import SendRefused, stage_of
from kvferry_connectors.tilert.extract import Cache, Extraction
from kvferry_connectors.tilert.fitting import Fit
from kvferry_connectors.tilert.layout import Stage
from kvferry_connectors.tilert.metadata import SendOrder
from kvferry_connectors.tilert.options import Options
from kvferry_connectors.tilert.outcomes import REFUSED, RankOutcome
from kvferry_connectors.tilert.sending import Send
from kvferry_connectors.tilert.staging import StagingPool
from kvferry_connectors.tilert.targets import Targets

SENDS_MAX = 64
"""Sends of one rank under way at one time; each has a thread."""
CLOSE_S = 10.0
"""How long a close waits for each send."""

log = logging.getLogger("kvferry.tilert")


class Active:
    """A send whose layers this step computes."""

    def __init__(self, send: Send, extraction: Extraction, layers: Sequence[int]) -> None:
        self.send = send
        self.extraction = extraction
        self.left = set(layers)


class Sender:
    """All sends of a rank."""

    def __init__(
        self,
        options: Options,
        fitted: Fit,
        *,
        rank: int,
        ranks: int,
        make_writer: Callable[[], RemoteWriter],
        report: Callable[[RankOutcome], None],
    ) -> None:
        """``ranks`` engine ranks hold the same KV. Of a node's senders, rank r plays those whose
        number is r modulo the ranks; engine ranks beyond the senders send nothing."""
        self._options = options
        self._fit = fitted
        self._rank = rank
        active = min(ranks, options.senders)
        self._plays = tuple(s for s in range(options.senders) if s % active == rank)
        self._layers = tuple(n for n in range(fitted.profile.layers) if n % active == rank)
        self._report = report
        self._make_writer = make_writer
        self._cache: Cache | None = None
        self._staging: StagingPool | None = None
        self._targets: Targets | None = None
        self._lock = threading.Lock()
        self._sends: dict[str, Send] = {}
        self._active: list[Active] = []

    def register(self, kv_caches: Mapping[str, Any], blocks: int) -> None:
        """The engine's cache.

        Raises:
            SendRefused: ``model_unfit``.
        """
        self._cache = Cache(self._fit, kv_caches, blocks)
        device = self._options.staging_device or str(self._cache.device)
        self._staging = StagingPool(self._options.staging_bytes, device)
        self._targets = Targets(self._make_writer, lambda: self._pool.area)

    def begin(self, orders: Sequence[SendOrder]) -> None:
        """This step computes the last of these prompts."""
        for order in orders:
            if not self._plays:
                continue
            try:
                self._active.append(self._begin(order))
            except SendRefused as refused:
                self._refuse(order, refused)

    def cancel(self, requests: Sequence[str]) -> None:
        """These were aborted."""
        with self._lock:
            found = [self._sends[request] for request in requests if request in self._sends]
        for send in found:
            send.stop("cancelled")

    def computed(self, name: str) -> None:
        """The cache called ``name`` is written: copy it for this step's sends."""
        if not self._active or self._cache is None:
            return
        number = self._cache.layer_of.get(name)
        if number is None:
            return
        for active in self._active:
            if number in active.left:
                self._copy(active, number)

    def step_over(self) -> None:
        """Everything is written: copy what no layer's hook did."""
        active, self._active = self._active, []
        for one in active:
            for number in sorted(one.left):
                self._copy(one, number)
            one.send.copied()

    @property
    def under_way(self) -> int:
        """Sends that have not ended."""
        with self._lock:
            return len(self._sends)

    @property
    def staging(self) -> StagingPool | None:
        """Its staging memory; None before :meth:`register`."""
        return self._staging

    def close(self) -> None:
        """Stop every send and wait for its thread."""
        self.step_over()
        with self._lock:
            left = list(self._sends.values())
        for send in left:
            send.stop("closed")
        deadline = time.monotonic() + CLOSE_S
        for send in left:
            if not send.join(max(0.0, deadline - time.monotonic())):
                log.error("tilert: the send of %s does not end", send.request)
        if self._targets is not None:
            self._targets.close()

    @property
    def _pool(self) -> StagingPool:
        assert self._staging is not None
        return self._staging

    def _begin(self, order: SendOrder) -> Active:
        if self._cache is None or self._targets is None:
            raise SendRefused("model_unfit", "no KV cache was registered")
        with self._lock:
            if len(self._sends) >= SENDS_MAX:
                raise SendRefused("staging_full", f"{SENDS_MAX} sends are under way")
        options = self._options
        shape = self._fit.shape(order.tokens)
        stage = Stage(shape, self._layers)
        lease = self._pool.reserve(stage.total_bytes)
        try:
            extraction = Extraction(self._cache, stage, lease.memory, order.block_ids)
        except BaseException:
            lease.release()
            raise
        wanted = Wanted(
            host=order.host,
            port=order.port,
            rid=order.rid,
            shape=shape,
            transport=options.transport,
            senders=options.senders,
            last_prompt_token=order.last_prompt_token,
            sampling=order.sampling,
            prompt_token_ids=order.prompt_token_ids,
            timeout_s=options.connect_timeout_ms / 1000,
            window_s=options.admission_window_ms / 1000,
        )
        send = Send(
            order.request,
            wanted,
            rank=self._rank,
            plays=self._plays,
            stage=stage,
            lease=lease,
            targets=self._targets,
            timeout_s=min(options.send_timeout_ms / 1000, order.within_s or math.inf),
            told=self._report,
            gone=self._gone,
        )
        with self._lock:
            self._sends[order.request] = send
        send.start()
        return Active(send, extraction, self._layers)

    def _copy(self, active: Active, number: int) -> None:
        active.left.discard(number)
        if active.send.over:
            return
        try:
            active.send.layer(number, active.extraction.copy(number))
        except RuntimeError:
            log.exception("tilert: layer %d of %s cannot be copied", number, active.send.request)
            active.send.stop("extraction_failed")

    def _gone(self, send: Send) -> None:
        with self._lock:
            if self._sends.get(send.request) is send:
                del self._sends[send.request]

    def _refuse(self, order: SendOrder, refused: SendRefused) -> None:
        self._report(
            RankOutcome(
                request=order.request,
                rank=self._rank,
                state=REFUSED,
                reason=refused.reason,
                detail=refused.detail,
                stage=stage_of(refused.reason),
            )
        )
