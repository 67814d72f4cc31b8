"""What `kvferry whatif` prints for people."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.cli import render
from kvferry.replay.whatif.report import Forecast, Report
from kvferry.replay.whatif.tally import ENOUGH
from kvferry.replay.words import duration

WHY_MAX = 3


def show(report: Report) -> None:
    """The whole report on stdout."""
    render.line(
        f"{report.of}, facts {report.first:,} to {report.last:,}: {report.requests:,} requests in "
        f"{duration(report.span_s * 1_000)}, {report.events:,} events at "
        f"{report.events_per_s:,.0f} a second"
    )
    _decisions(report)
    if report.computed_tokens is not None and report.policy.changes:
        _forecast(report)
    if report.policy.changes:
        render.heading("Assumed")
        for text in report.assumptions:
            render.line(f"  {text}")


def _decisions(report: Report) -> None:
    render.heading("Decided again under the recorded policy")
    verdict = "" if report.enough else f"  TOO FEW: at least {ENOUGH:.0%} are needed"
    render.line(
        f"  {report.reproduced:.2%} of {report.decisions:,} decisions come out the same{verdict}"
    )
    rows = [
        (
            kind.kind,
            kind.decided,
            kind.same,
            "; ".join(f"{count:,} x {why}" for why, count in list(kind.why.items())[:WHY_MAX]),
        )
        for kind in report.kinds
    ]
    render.table(("decided by", ">decisions", ">the same", "what differs"), rows)
    for kind in report.kinds:
        for one in kind.examples[:1]:
            render.line(
                f"  for example {one.request} on {one.node}: {one.recorded or 'nothing'} was "
                f"recorded, again it is {one.again}"
            )
    if report.policy.weighed and any("again too_dear" in w for k in report.kinds for w in k.why):
        render.line(
            "  what was pulled then is too dear now: if an older coordinator ran with --cost off, "
            "say --recorded-cost off"
        )
    if report.not_decided:
        told = ", ".join(f"{word} {count:,}" for word, count in report.not_decided.items())
        render.line(f"  no policy decided: {told}")


def _forecast(report: Report) -> None:
    render.heading("Under the other policy")
    rows = [
        _row("tokens computed", report.computed_tokens, _count),
        _row("  of them again", report.recomputed_tokens, _count),
        _row("bytes moved between nodes", report.moved_bytes, _size),
        _row("tokens from own host memory", report.host_tokens, _count),
        _row("TTFT p50", report.ttft_p50_ms, duration),
        _row("TTFT p95", report.ttft_p95_ms, duration),
        _row("TTFT p99", report.ttft_p99_ms, duration),
    ]
    render.table(("", ">was", ">forecast", ">band"), rows)
    render.line(f"  TTFT of {report.ttft_count:,} (each of one {report.ttft_of})")
    for error in report.errors:
        if error.count:
            render.line(
                f"  predictions of a {error.what} were off by {error.p50:.0%} in the median and "
                f"{error.p95:.0%} at p95, over {error.count:,}"
            )


def _row(
    title: str, one: Forecast | None, shown: Callable[[float], str]
) -> tuple[str, str, str, str]:
    if one is None:
        return title, "", "", ""
    band = f"{shown(one.low)} to {shown(one.high)}"
    return title, shown(one.was), shown(one.forecast), band


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _size(value: float) -> str:
    return render.size(round(value))
