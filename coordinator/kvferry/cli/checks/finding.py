"""The result of one check."""

from __future__ import annotations

import msgspec

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, how it is, and what to do about it."""

    check: str
    level: str
    text: str
    cure: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, OK, text)


def warn(check: str, text: str, cure: str) -> Finding:
    """It works, but less well than it could, or not for long."""
    return Finding(check, WARN, text, cure)


def fail(check: str, text: str, cure: str) -> Finding:
    """Something that should work does not."""
    return Finding(check, FAIL, text, cure)
