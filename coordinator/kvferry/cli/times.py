"""Points on the ledger as people write them: a sequence, a moment, or how long ago."""

from __future__ import annotations

import re
import time
from datetime import datetime

import msgspec

from kvferry.errors import ConfigError
from kvferry.replay.words import duration as duration
from kvferry.replay.words import iso as iso

FORMS = (
    "a stream sequence (1234), a moment (2026-01-31T10:15:00Z; without a zone it is local time), "
    "how long ago (-90s, -5m, -1h30m, -2d), Unix seconds (@1767225600), or now"
)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_AGO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Point(msgspec.Struct, frozen=True):
    """Exactly one of the two is set: a stream sequence, or a server store time."""

    seq: int | None = None
    time_ms: int | None = None
    """Unix milliseconds."""


def parse_point(text: str, now_ms: int) -> Point:
    """What ``--from`` and ``--to`` take.

    Raises:
        ConfigError: ``text`` is none of :data:`FORMS`.
    """
    text = text.strip()
    if re.fullmatch(r"\d+", text):
        return Point(seq=int(text))
    if text == "now":
        return Point(time_ms=now_ms)
    if _AGO.fullmatch(text):
        ago = sum(float(n) * _UNIT_MS[unit] for n, unit in _AGO_PART.findall(text))
        return Point(time_ms=round(now_ms - ago))
    if re.fullmatch(r"@\d+(?:\.\d+)?", text):
        return Point(time_ms=round(float(text[1:]) * 1_000))
    try:
        return Point(time_ms=round(datetime.fromisoformat(text).timestamp() * 1_000))
    except ValueError:
        raise ConfigError(f"{text!r} is no point on the ledger: give {FORMS}") from None


def wall_ms() -> int:
    """The clock on the wall of the person who typed the command, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def clock(unix_ms: int) -> str:
    """The time of day, for one line of an event list."""
    return datetime.fromtimestamp(unix_ms / 1_000).strftime("%H:%M:%S.%f")[:-3]
