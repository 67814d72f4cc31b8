"""What the packing kernel is told about a pool."""

from __future__ import annotations

import math

from kvferry.ports.backend import Regions


def word_bytes(regions: Regions) -> int:
    """The largest word, of 8, 4, 2 or 1 bytes, that all spans are aligned to and made of."""
    found = 8
    for span in regions.spans:
        found = math.gcd(found, span.address, span.stride, span.length)
    return found


def spans_by_width(regions: Regions) -> dict[int, list[int]]:
    """For each width of span: address, stride and offset within a block of each such span.

    The offset is where the span's bytes would begin in a packed block; in a chunk of n blocks they
    begin at n times that.
    """
    found: dict[int, list[int]] = {}
    offset = 0
    for span in regions.spans:
        found.setdefault(span.length, []).extend((span.address, span.stride, offset))
        offset += span.length
    return found
