"""Moments, lengths of time and counts as they stand in a sentence."""

from __future__ import annotations

from datetime import datetime


def iso(unix_ms: int) -> str:
    """Local time with its zone, to the millisecond."""
    moment = datetime.fromtimestamp(unix_ms / 1_000).astimezone()
    return moment.isoformat(timespec="milliseconds")


def duration(ms: float) -> str:
    """A length of time in the largest unit that keeps it readable."""
    if 0 < ms < 10:
        return f"{ms:.2g} ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.0f} min"
    if ms < 172_800_000:
        return f"{ms / 3_600_000:.1f} h"
    return f"{ms / 86_400_000:.1f} d"


def counted(count: int, thing: str) -> str:
    """``1 block``, ``2,048 blocks``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
