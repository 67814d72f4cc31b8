"""Pools as NIXL's descriptor lists, and blocks as positions in them. Pure but for numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvferry.errors import BackendError
from kvferry.ports.backend import Span

POSITIONS_MAX = 2**31 - 1
BATCH_DESCRIPTORS = 4096
BATCH_BYTES = {"host": 64 * 1024 * 1024, "cuda": 1024 * 1024 * 1024}
"""Posted at a time, since posting cannot be interrupted: host memory UCX may copy in the very call,
which takes some 10 ms; a device does it by itself."""


def areas(spans: Sequence[Span], blocks: int) -> list[tuple[int, int]]:
    """The memory of all blocks as (address, length), in order; spans that interleave are one area.

    Areas that only touch stay apart: they may be different allocations.
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(
        (span.address, span.address + (blocks - 1) * span.stride + span.length) for span in spans
    ):
        if found and start < found[-1][0] + found[-1][1]:
            first = found[-1][0]
            found[-1] = (first, max(stop, first + found[-1][1]) - first)
        else:
            found.append((start, stop - start))
    return found


def table(spans: Sequence[Span], blocks: int, device: int) -> Any:
    """All blocks of all spans: a row of (address, length, device, stride, count) for each span.

    Raises:
        BackendError: there are more descriptors than NIXL can count.
    """
    if len(spans) * blocks > POSITIONS_MAX:
        raise BackendError(
            f"{blocks} blocks of {len(spans)} spans are more than {POSITIONS_MAX} descriptors"
        )
    return np.array(
        [(s.address, s.length, device, max(s.stride, s.length), blocks) for s in spans],
        dtype=np.uint64,
    )


def positions(spans: int, blocks: int, listed: Any) -> Any:
    """Where ``listed`` blocks of a pool of ``blocks`` stand in its :func:`table`: span by span."""
    starts = np.arange(spans, dtype=np.int32)[:, None] * np.int32(blocks)
    return (starts + listed[None, :]).ravel()


def batches(total: int, widths: Sequence[int], kind: str) -> Iterator[tuple[int, int]]:
    """Positions ``start`` to ``stop`` of a transfer's list, few enough to post at a time."""
    each = max(1, min(BATCH_DESCRIPTORS // len(widths), BATCH_BYTES[kind] // sum(widths)))
    for start in range(0, total, each):
        yield start, min(start + each, total)


def count(sources: Any, targets: Any, spans: Sequence[Span], peer_spans: Sequence[Span]) -> int:
    """Descriptors that are left of a direct read once NIXL has joined what lies side by side."""
    breaks = (np.diff(sources) != 1) | (np.diff(targets) != 1)
    runs = 1 + int(breaks.sum())
    return sum(
        runs if ours.stride == ours.length and theirs.stride == theirs.length else len(sources)
        for ours, theirs in zip(spans, peer_spans, strict=True)
    )
