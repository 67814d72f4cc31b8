"""Memory of a host tier: as many slots as the operator allows, never more than the host has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from kvferry.errors import BackendError, ConfigError
from kvferry.ports.backend import Regions, Span

ALIGN_BYTES = 4096
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

log = logging.getLogger("kvferry.host_tier")


def available_bytes() -> int | None:
    """Memory that this process can still take: the host's, or its container's if that is less.

    None where the system does not tell.
    """
    found = [_host_available(), _container_available()]
    known = [size for size in found if size is not None]
    return min(known) if known else None


def check_budget(size: int) -> None:
    """Refuse a host tier that does not fit.

    Raises:
        ConfigError: ``size`` bytes are more than there are.
    """
    left = available_bytes()
    if left is not None and size > left:
        raise ConfigError(
            f"host_tier_bytes={size}: this host has {left} bytes of memory left; lower it, or set "
            "it to 0 to do without a host tier"
        )


def make_pool(engine: Regions, slots: int) -> Regions:
    """``slots`` slots for blocks of the engine's pool.

    Where that is host memory, span by span, as they lie there: what are neighbours stay so. Where
    it is CUDA memory, pinned, and slot by slot: a block is one piece, which the GPU's copy engine
    moves at the bus's full rate without taking anything from the processors that compute.

    Raises:
        BackendError: there is no memory for it.
    """
    pinned = engine.kind == "cuda"
    sizes = (
        [engine.block_bytes * slots] if pinned else [span.length * slots for span in engine.spans]
    )
    sizes = [_aligned(size) for size in sizes]
    memory, base = _allocate(sum(sizes) + ALIGN_BYTES, pinned=pinned)
    base = _aligned(base)
    spans = block_by_block(base, engine) if pinned else _span_by_span(base, engine, sizes)
    return Regions(spans, slots, "host", owner=memory)


def block_by_block(base: int, engine: Regions) -> tuple[Span, ...]:
    """The engine's spans in memory from ``base`` on in which each block is one piece."""
    spans = []
    for span in engine.spans:
        spans.append(Span(base, engine.block_bytes, span.length))
        base += span.length
    return tuple(spans)


def _span_by_span(base: int, engine: Regions, sizes: list[int]) -> tuple[Span, ...]:
    spans = []
    for span, size in zip(engine.spans, sizes, strict=True):
        spans.append(Span(base, span.length, span.length))
        base += size
    return tuple(spans)


def _allocate(size: int, *, pinned: bool) -> tuple[Any, int]:
    try:
        if pinned:
            import torch

            tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            return tensor, int(tensor.data_ptr())
        import numpy as np

        array: Any = np.empty(size, dtype=np.uint8)
        return array, int(array.ctypes.data)
    except (MemoryError, RuntimeError) as error:
        how = "pinned " if pinned else ""
        raise BackendError(
            f"no {size} bytes of {how}host memory ({error}); lower host_tier_bytes"
        ) from error


def _aligned(value: int) -> int:
    return -(-value // ALIGN_BYTES) * ALIGN_BYTES


def _host_available() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError) as error:
        log.debug("%s says nothing of available memory: %s", _MEMINFO, error)
    return None


def _container_available() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        return None if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError) as error:
        log.debug("no memory limit of a container is known: %s", error)
    return None
