"""The figures that the head of the page shows."""

from __future__ import annotations

import msgspec

from kvferry.replay.advise.parts import counted, part_of, rate, share, time
from kvferry.replay.advise.report import WITH, WITHOUT, Link, Report


class Tile(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, what it is, and what it was made of."""

    value: str
    label: str
    note: str = ""


def tiles(report: Report) -> list[Tile]:
    """Four at most; none of a report of nothing."""
    if not report.prompt_tokens:
        return []
    found = [
        Tile(
            value=share(report.repeated_tokens, report.prompt_tokens),
            label="of prompt tokens repeat",
            note=f"in {counted(report.requests, 'turn')} of {counted(report.sessions, 'session')}",
        )
    ]
    if report.prefill_s:
        found.append(
            Tile(
                value=share(abs(report.saved_s), report.prefill_s),
                label="of prefill time "
                + ("spared by reuse" if report.saved_s >= 0 else "lost by moving"),
                note=part_of(abs(report.saved_s), report.prefill_s),
            )
        )
    if report.links:
        found.append(_link(report.links))
    return found + _ttft(report)


def _link(links: tuple[Link, ...]) -> Tile:
    known = [link for link in links if link.rate_bytes_s]
    if not known:
        return Tile(
            value=rate(links[0].peak_bytes_s),
            label="over the busiest link at its peak",
            note="what it carries is not known",
        )
    worst = max(known, key=lambda link: link.peak_bytes_s / link.rate_bytes_s)
    return Tile(
        value=share(worst.peak_bytes_s, worst.rate_bytes_s),
        label="of the fullest link used at its peak",
        note=f"{rate(worst.peak_bytes_s)} of {rate(worst.rate_bytes_s)}",
    )


def _ttft(report: Report) -> list[Tile]:
    """Of all turns."""
    if not report.ttft:
        return []
    widest = report.ttft[-1].prompt  # All lengths, unless there is only one.
    rows = {row.how: row.seconds for row in report.ttft if row.prompt == widest}
    return [
        Tile(
            value=f"{time(rows[WITHOUT].p95)} → {time(rows[WITH].p95)}",
            label="TTFT p95 without reuse → with it",
            note="one measured, one predicted" if report.ttft_measured else "by a model",
        )
    ]
