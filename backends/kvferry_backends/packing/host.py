"""Packing in host memory: one call into numpy for each span, which gives up the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.layout import check_regions


class HostPacker:
    """Implements :class:`kvferry_backends.packing.packer.Packer` for host memory."""

    def __init__(self, regions: Regions) -> None:
        """Map ``regions``, whose ``owner`` is kept alive as long as this object.

        Raises:
            BackendError: they are not host memory, or no pool of blocks.
        """
        if regions.kind != "host":
            raise BackendError(f"regions are {regions.kind!r} memory, not 'host'")
        check_regions(regions)
        self._regions = regions
        self._spans = [span_rows(span, regions.blocks) for span in regions.spans]

    def listed(self, blocks: Sequence[int]) -> Any:
        return np.asarray(blocks, dtype=np.intp)

    def pack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        ids = listed[start:stop]
        for rows, packed in self._parts(stop - start, slot):
            if rows.flags.c_contiguous:
                # Clipping never happens, but the default mode copies through a buffer.
                np.take(rows, ids, axis=0, out=packed, mode="clip")
            else:
                packed[...] = rows[ids]

    def unpack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        ids = listed[start:stop]
        for rows, packed in self._parts(stop - start, slot):
            rows[ids] = packed

    def _parts(self, count: int, slot: int) -> list[tuple[Any, Any]]:
        """Each span's rows, with its part of a slot that holds ``count`` blocks."""
        found = []
        for rows in self._spans:
            length = rows.shape[1]
            found.append((rows, _bytes(slot, count * length).reshape(count, length)))
            slot += count * length
        return found


def span_rows(span: Span, blocks: int) -> Any:
    """A span as an array of ``blocks`` rows of its length."""
    flat = _bytes(span.address, (blocks - 1) * span.stride + span.length)
    strides = (span.stride if blocks > 1 else span.length, 1)
    return np.lib.stride_tricks.as_strided(flat, (blocks, span.length), strides)


def _bytes(address: int, size: int) -> Any:
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=np.uint8)
