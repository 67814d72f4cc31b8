"""The worker's side: one per rank. Copies layers as they are computed, and sends them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvferry.ports.remote_writer import RemoteWriter
from kvferry_backends.registry import create_writer
from kvferry_connectors.tilert.errors import SendRefused, stage_of
from kvferry_connectors.tilert.fitting import Fit
from kvferry_connectors.tilert.metadata import TileRTMetadata
from kvferry_connectors.tilert.options import Options
from kvferry_connectors.tilert.outcomes import REFUSED, RankOutcome
from kvferry_connectors.tilert.reports import Reporter
from kvferry_connectors.tilert.sender import Sender

log = logging.getLogger("kvferry.tilert")


class WorkerSide:
    """Does nothing before the first order, and nothing at all where the model does not fit."""

    def __init__(
        self,
        options: Options,
        fitted: Fit | SendRefused,
        *,
        blocks: int,
        rank: int,
        ranks: int,
        make_writer: Callable[[], RemoteWriter] | None = None,
    ) -> None:
        """``blocks`` of the engine's cache; ``rank`` is one of ``ranks`` that hold the same KV."""
        self._reporter = Reporter()
        self._rank = rank
        self._blocks = blocks
        self.sender: Sender | None = None
        """The sends; None where the model does not fit."""
        self._unfit: SendRefused | None = None
        if isinstance(fitted, SendRefused):
            self._unfit = fitted
            return
        self.sender = Sender(
            options,
            fitted,
            rank=rank,
            ranks=ranks,
            make_writer=make_writer or (lambda: create_writer("nixl", options.writer_options)),
            report=self._reporter.tell,
        )

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The engine's cache. One that cannot be sent is refused when somebody asks."""
        if self.sender is None:
            return
        try:
            self.sender.register(kv_caches, self._blocks)
        except SendRefused as refused:
            log.warning("tilert: claimed requests will be refused: %s", refused)
            self.sender, self._unfit = None, refused

    def take(self, meta: TileRTMetadata) -> None:
        """A step begins."""
        if meta.orders:
            self._reporter.to = meta.report_to
            if self.sender is not None:
                self.sender.begin(meta.orders)
            else:
                self._refuse_all(meta)
        if meta.cancels and self.sender is not None:
            self.sender.cancel(meta.cancels)

    def computed(self, layer: str) -> None:
        """A layer's cache is written."""
        if self.sender is not None:
            self.sender.computed(layer)

    def step_over(self) -> None:
        """All layers are."""
        if self.sender is not None:
            self.sender.step_over()

    def close(self) -> None:
        """Stop every send and every thread."""
        if self.sender is not None:
            self.sender.close()
        self._reporter.close()

    def _refuse_all(self, meta: TileRTMetadata) -> None:
        assert self._unfit is not None
        for order in meta.orders:
            self._reporter.tell(
                RankOutcome(
                    request=order.request,
                    rank=self._rank,
                    state=REFUSED,
                    reason=self._unfit.reason,
                    detail=self._unfit.detail,
                    stage=stage_of(self._unfit.reason),
                )
            )
