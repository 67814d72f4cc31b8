"""Points on the ledger as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvferry.cli.times import Point, duration, iso, parse_point
from kvferry.errors import ConfigError

NOW = 1_780_000_000_000


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("1234", Point(seq=1234)),
        ("0", Point(seq=0)),
        ("now", Point(time_ms=NOW)),
        ("-90s", Point(time_ms=NOW - 90_000)),
        ("-1h30m", Point(time_ms=NOW - 5_400_000)),
        ("-1.5d", Point(time_ms=NOW - 129_600_000)),
        ("-250ms", Point(time_ms=NOW - 250)),
        ("@1767225600", Point(time_ms=1_767_225_600_000)),
        ("@1767225600.25", Point(time_ms=1_767_225_600_250)),
        ("2026-01-01T00:00:00Z", Point(time_ms=1_767_225_600_000)),
        ("2026-01-01T01:00:00+01:00", Point(time_ms=1_767_225_600_000)),
    ],
)
def test_every_form_is_read(text: str, point: Point) -> None:
    assert parse_point(text, NOW) == point


def test_a_moment_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 1, 12, 0).timestamp() * 1000
    assert parse_point("2026-01-01T12:00", NOW).time_ms == local


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "5m", "@", "-m", "12:00:99", "1e3"])
def test_other_words_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="no point on the ledger: give a stream sequence"):
        parse_point(text, NOW)


def test_a_time_shown_is_a_time_read() -> None:
    assert parse_point(iso(NOW + 7), NOW).time_ms == NOW + 7
    assert datetime.fromisoformat(iso(NOW)).astimezone(UTC).year == 2026


def test_durations_keep_a_readable_unit() -> None:
    assert [duration(ms) for ms in (5, 1_500, 300_000, 7_300_000, 200_000_000)] == [
        "5 ms",
        "1.5 s",
        "5 min",
        "2.0 h",
        "2.3 d",
    ]
