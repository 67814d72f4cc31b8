"""Copies between two pools in host memory: a call or two into numpy a span, without the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry.ports.backend import Regions
from kvferry_backends.layout import check_regions, runs
from kvferry_backends.packing.host import span_rows


class HostMover:
    """Implements :class:`kvferry_backends.host_tier.mover.Mover` for engines in host memory."""

    def __init__(self, engine: Regions, pool: Regions) -> None:
        """Map both pools; their owners are kept alive as long as this object.

        Raises:
            BackendError: one of them is no pool of blocks.
        """
        for regions in (engine, pool):
            check_regions(regions)
        self._owners = (engine, pool)
        self._engine = [span_rows(span, engine.blocks) for span in engine.spans]
        self._pool = [span_rows(span, pool.blocks) for span in pool.spans]

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        for source, target in zip(self._engine, self._pool, strict=True):
            _copy(source, blocks, target, slots)

    def to_engine(self, slots: Sequence[int], blocks: Sequence[int], point: Any) -> None:
        for source, target in zip(self._pool, self._engine, strict=True):
            _copy(source, slots, target, blocks)

    def point(self) -> Any:
        return None


def _copy(source: Any, sources: Sequence[int], target: Any, targets: Sequence[int]) -> None:
    """Rows to rows. Where the targets lie together nothing goes through a buffer."""
    ids = np.asarray(sources, dtype=np.intp)
    together = runs(targets)
    if len(together) == 1 and source.flags.c_contiguous and target.flags.c_contiguous:
        first, count = together[0]
        # Clipping never happens, but the default mode copies through a buffer.
        np.take(source, ids, axis=0, out=target[first : first + count], mode="clip")
    else:
        target[np.asarray(targets, dtype=np.intp)] = source[ids]
