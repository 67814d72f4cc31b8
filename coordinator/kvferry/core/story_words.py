"""Counts, lengths of time and sizes as they stand in the sentences of events."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """``1 block``, ``2,048 blocks``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def milliseconds(value: float) -> str:
    """``0.4 ms``, ``31 ms``, ``12.3 s``."""
    if value >= 10_000:
        return f"{value / 1_000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def size(count: int) -> str:
    """``512 bytes``, ``14.6 MB``."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} bytes"
