"""What an engine's reply says about reuse, and how a client reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

REUSE_LINE_HEADER = "x-kvferry"

_UNSAFE = re.compile(r"[^A-Za-z0-9_.@:-]")
_WORD_CHARS_MAX = 64


@dataclass(frozen=True)
class Report:
    """Where one request's prompt came from, as its engine counted; all counts in tokens."""

    request: str = ""
    node: str = ""
    prompt_tokens: int = 0
    local: int = 0
    pulled: int = 0
    computed: int = 0
    source: str = ""
    ms: float = 0.0
    miss: str = ""


@dataclass(frozen=True)
class KVReply:
    """The ``kvferry`` part of a reply's ``kv_transfer_params``."""

    hint: dict[str, object] | None = None
    report: Report | None = None


def read_reply(params: object) -> KVReply:
    """Never raises: what is not there or has another shape is taken as absent."""
    part = params.get("kvferry") if isinstance(params, dict) else None
    if not isinstance(part, dict):
        return KVReply()
    hint, report = part.get("hint"), part.get("report")
    return KVReply(
        hint if isinstance(hint, dict) and hint else None,
        _read_report(report) if isinstance(report, dict) else None,
    )


def _read_report(raw: dict[str, object]) -> Report:
    def count(name: str) -> int:
        value = raw.get(name)
        return value if type(value) is int and value >= 0 else 0

    def word(name: str) -> str:
        value = raw.get(name)
        return _UNSAFE.sub("_", value)[:_WORD_CHARS_MAX] if isinstance(value, str) else ""

    request = raw.get("request")
    ms = raw.get("ms")
    return Report(
        request=request if isinstance(request, str) else "",
        node=word("node"),
        prompt_tokens=count("prompt_tokens"),
        local=count("local"),
        pulled=count("pulled"),
        computed=count("computed"),
        source=word("from"),
        ms=float(ms) if isinstance(ms, int | float) and ms >= 0 else 0.0,
        miss=word("miss"),
    )


def reuse_line(report: Report | None, miss: str) -> str:
    """The ``x-kvferry`` header, for example ``pulled=2039 from=d0 31ms``.

    Args:
        report: of the engine that built the prompt's KV, if it gave one.
        miss: why there is no report, in one word.
    """
    if report is None:
        return f"miss={miss}"
    parts = []
    if report.local:
        parts.append(f"local={report.local}")
    if report.pulled:
        parts.append(f"pulled={report.pulled} from={report.source} {report.ms:.0f}ms")
    if report.miss and report.miss != "local":
        parts.append(f"miss={report.miss}")
    return " ".join(parts) or "miss=nothing_held"
