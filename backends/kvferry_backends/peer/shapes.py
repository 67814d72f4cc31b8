"""Spans by their length: one launch copies spans that are equally long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Placed = tuple[int, int, int]
"""Address, stride and length of a span."""


class Group(NamedTuple):
    """Spans of one length."""

    length: int
    spans: tuple[int, ...]
    """Their indices among all."""


def groups(widths: Sequence[int]) -> tuple[Group, ...]:
    """Which spans go into a launch together, longest first."""
    lengths = sorted(set(widths), reverse=True)
    return tuple(
        Group(length, tuple(i for i, width in enumerate(widths) if width == length))
        for length in lengths
    )


def aligned(spans: Sequence[Placed], to_bytes: int) -> bool:
    """Whether every block of every span begins and ends at a multiple of ``to_bytes``."""
    return all(value % to_bytes == 0 for span in spans for value in span)
