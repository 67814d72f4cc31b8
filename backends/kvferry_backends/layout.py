"""Blocks as memory: checks on regions, runs of consecutive blocks, and views without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span


def runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """``blocks`` as (first, count) of consecutive ids, in the order given."""
    found: list[tuple[int, int]] = []
    first = following = -1
    for block in blocks:
        if block != following:
            if first >= 0:
                found.append((first, following - first))
            first = block
        following = block + 1
    if first >= 0:
        found.append((first, following - first))
    return found


def check_regions(regions: Regions) -> None:
    """Say what is wrong with ``regions``, if anything.

    Raises:
        BackendError: there is no block or span, or a span's blocks would overlap.
    """
    if regions.blocks < 1 or not regions.spans:
        raise BackendError(
            f"{regions.blocks} blocks of {len(regions.spans)} spans hold no KV; "
            "register the pool after the engine has allocated it"
        )
    for index, span in enumerate(regions.spans):
        if span.address <= 0 or span.length <= 0:
            raise BackendError(
                f"span {index} has {span.length} bytes a block at address {span.address:#x}"
            )
        if regions.blocks > 1 and span.stride < span.length:
            raise BackendError(
                f"span {index} has {span.length} bytes a block but a stride of {span.stride}: "
                "its blocks would overlap"
            )


class HostPool:
    """The blocks of host regions as writable views of the memory itself.

    Stream order of several blocks is span by span, and block by block within a span, so that
    consecutive blocks of a layer become one piece. Both ends must have the same ``widths``.
    """

    def __init__(self, regions: Regions) -> None:
        """Map ``regions``, whose ``owner`` is kept alive as long as this object.

        Raises:
            BackendError: the regions are not host memory, or :func:`check_regions` objects.
        """
        if regions.kind != "host":
            raise BackendError(f"regions are {regions.kind!r} memory; only 'host' can be mapped")
        check_regions(regions)
        self.blocks = regions.blocks
        self.block_bytes = regions.block_bytes
        self.widths = tuple(span.length for span in regions.spans)
        self._regions = regions
        self._mapped = [(_view(span, regions.blocks), span) for span in regions.spans]

    def extents(self, blocks: Sequence[int]) -> tuple[list[int], list[int]]:
        """The addresses and lengths of ``blocks`` in stream order, adjacent ones joined.

        Raises:
            BackendError: a block is not in the pool.
        """
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.blocks:
            raise BackendError(
                f"blocks {min(blocks)} to {max(blocks)} are not within a pool of {self.blocks}"
            )
        joined = runs(blocks)
        addresses: list[int] = []
        lengths: list[int] = []
        # Layers are alike as a rule, so what they share is worked out once.
        known: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for span in self._regions.spans:
            stride, length, base = span.stride, span.length, span.address
            if (stride, length) not in known:
                alone = stride != length or len(joined) == len(blocks)
                known[stride, length] = (
                    [block * stride for block in (blocks if alone else [b for b, _ in joined])],
                    [length] * len(blocks) if alone else [n * length for _, n in joined],
                )
            offsets, sizes = known[stride, length]
            addresses += [base + offset for offset in offsets]
            lengths += sizes
        return addresses, lengths

    def block(self, block: int) -> list[memoryview]:
        """The bytes of one block, span by span."""
        return [
            view[block * span.stride : block * span.stride + span.length]
            for view, span in self._mapped
        ]


def _view(span: Span, blocks: int) -> memoryview:
    extent = (blocks - 1) * span.stride + span.length
    return memoryview((ctypes.c_ubyte * extent).from_address(span.address)).cast("B")
