"""The report as headings, lines, tables and plots, for whatever shows it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvferry.replay.advise.report import (
    DO_NOT_ENABLE,
    ENABLE,
    TOO_LITTLE,
    Link,
    Report,
    Spread,
)

TITLE = "Does moving KV between engines pay here?"
WORDS = {
    ENABLE: "Enable it.",
    DO_NOT_ENABLE: "Do not enable this.",
    TOO_LITTLE: "Too little was seen to say.",
}
LINKS_SHOWN_MAX = 20
Cell = str | int


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Bars in groups: for each label one value of each series; None where there is none."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the report. Columns whose title begins with ``>`` are numbers."""

    title: str
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    plots: tuple[Plot, ...] = ()


def sections(report: Report) -> list[Section]:
    """All parts that the report has something to say in, the recommendation first."""
    parts = [_verdict(report), _traffic(report)]
    if report.shares:
        parts.append(_shares(report))
    parts.append(_gaps(report))
    if report.kind == "ledger":
        parts.append(_reuse(report))
    if report.kept:
        parts.append(_kept(report))
    parts.append(_links(report))
    if report.ttft:
        parts.append(_ttft(report))
    if report.assumptions:
        parts.append(Section(title="What was assumed", lines=report.assumptions))
    return parts


def _verdict(report: Report) -> Section:
    return Section(
        title="Recommendation: " + WORDS[report.verdict.word],
        lines=(*report.verdict.reasons, "The rule: " + report.verdict.rule),
    )


def _traffic(report: Report) -> Section:
    lines = [
        f"from {report.of}",
        f"{report.requests:,} turns of {report.sessions:,} sessions in {_time(report.span_s)}, "
        f"with {report.prompt_tokens:,} prompt tokens",
        f"{_share(report.repeated_tokens, report.prompt_tokens)} of them repeat what had been "
        "computed before",
    ]
    if report.reused_tokens is not None:
        lines.append(
            f"{_share(report.reused_tokens, report.prompt_tokens)} of them were not computed again"
        )
    return Section(title="Traffic", lines=tuple(lines))


def _shares(report: Report) -> Section:
    reused = report.reused_tokens is not None
    rows: list[tuple[Cell, ...]] = []
    for row in report.shares:
        cells = (row.turn, row.requests, row.prompt_tokens // row.requests)
        parts: tuple[Cell, ...] = (_share(row.repeated_tokens, row.prompt_tokens),)
        if row.reused_tokens is not None:
            parts += (_share(row.reused_tokens, row.prompt_tokens),)
        rows.append((*cells, *parts))
    series = {
        "repeated": tuple(
            100 * row.repeated_tokens / max(1, row.prompt_tokens) for row in report.shares
        )
    }
    if reused:
        series["reused"] = tuple(
            100 * (row.reused_tokens or 0) / max(1, row.prompt_tokens) for row in report.shares
        )
    return Section(
        title="What repeats, by turn of the session",
        columns=("turn", ">turns", ">mean prompt", ">repeated", *((">reused",) if reused else ())),
        rows=tuple(rows),
        plots=(
            Plot(
                title="Share of the prompt that repeats, by turn",
                unit="%",
                labels=tuple(row.turn for row in report.shares),
                series=series,
            ),
        ),
    )


def _gaps(report: Report) -> Section:
    gaps = report.gaps_s
    if gaps is None:
        return Section(title="Gaps between turns", lines=("no session came back",))
    rows = tuple(
        (
            _time(row.keep_s),
            f"{row.gaps_share:.1%}" if row.gaps_share is not None else "",
            ""
            if row.repeated_tokens is None
            else _share(row.repeated_tokens, report.prompt_tokens),
            "" if row.mean_bytes is None else f"{row.mean_bytes / 1e9:,.1f}",
        )
        for row in report.keeping
    )
    line = (
        f"half of {gaps.count:,} gaps last up to {_time(gaps.p50)}, 90 % up to {_time(gaps.p90)}, "
        f"99 % up to {_time(gaps.p99)}"
    )
    return Section(
        title="Gaps between turns against how long KV is kept",
        lines=(line,),
        columns=("KV kept for", ">gaps no longer", ">of prompts found", ">GB held on average"),
        rows=rows,
        plots=(
            Plot(
                title="Gaps that are no longer than KV is kept",
                unit="%",
                labels=tuple(_time(row.keep_s) for row in report.keeping),
                series={"gaps": tuple(100 * (row.gaps_share or 0.0) for row in report.keeping)},
            ),
        ),
    )


def _reuse(report: Report) -> Section:
    rows = [(f"reused: {how}", count) for how, count in report.hits.items()]
    rows += [(f"not pulled: {cause}", count) for cause, count in report.misses.items()]
    return Section(
        title="Hits and misses",
        columns=("turns", ">count", ">share"),
        rows=tuple((name, count, _share(count, report.requests)) for name, count in rows),
        plots=(
            Plot(
                title="Turns that pulled nothing, by cause",
                unit="turns",
                labels=tuple(report.misses),
                series={"turns": tuple(float(count) for count in report.misses.values())},
            ),
        )
        if report.misses
        else (),
    )


def _kept(report: Report) -> Section:
    return Section(
        title="How long KV was offered, and what ended it before its next use",
        columns=(
            "ended by",
            ">offers",
            ">kept p50",
            ">kept p90",
            ">ended before its next turn",
            ">too early by (p50)",
        ),
        rows=tuple(
            (
                row.reason,
                row.offers,
                _time(row.kept_s.p50),
                _time(row.kept_s.p90),
                row.before_next_use,
                _time(row.too_early_s) if row.before_next_use else "",
            )
            for row in report.kept
        ),
    )


def _links(report: Report) -> Section:
    if not report.links:
        return Section(title="Bytes and links", lines=("nothing would be moved",)
                       if report.kind == "trace" else ("nothing was moved",))  # fmt: skip
    shown = report.links[:LINKS_SHOWN_MAX]
    lines = [f"{report.bytes_per_turn / 1e6:,.2f} MB a turn"]
    if len(report.links) > len(shown):
        lines.append(f"the {len(shown)} busiest of {len(report.links)} links")
    return Section(
        title="Bytes and links",
        lines=tuple(lines),
        columns=(
            "link",
            ">moves",
            ">GB",
            ">peak GB/s",
            ">carries GB/s",
            "known by",
            ">of it at peak",
        ),
        rows=tuple(
            (
                _link(one),
                one.moves,
                f"{one.bytes / 1e9:,.3f}",
                f"{one.peak_bytes_s / 1e9:,.3f}",
                f"{one.rate_bytes_s / 1e9:,.3f}" if one.rate_bytes_s else "unknown",
                one.measured,
                _share(one.peak_bytes_s, one.rate_bytes_s),
            )
            for one in shown
        ),
        plots=(
            Plot(
                title="Links at their peak, and what they carry",
                unit="GB/s",
                labels=tuple(_link(one) for one in shown[:8]),
                series={
                    "peak": tuple(one.peak_bytes_s / 1e9 for one in shown[:8]),
                    "carries": tuple(one.rate_bytes_s / 1e9 or None for one in shown[:8]),
                },
            ),
        ),
    )


def _ttft(report: Report) -> Section:
    labels = tuple(dict.fromkeys(row.prompt for row in report.ttft))
    kinds = tuple(dict.fromkeys(row.how for row in report.ttft))
    found = {(row.prompt, row.how): row.seconds for row in report.ttft}

    def plot(name: str) -> Plot:
        def value(label: str, how: str) -> float | None:
            seconds: Spread | None = found.get((label, how))
            return getattr(seconds, name) if seconds is not None else None

        return Plot(
            title=f"TTFT by prompt tokens, {name}",
            unit="s",
            labels=labels,
            series={how: tuple(value(label, how) for label in labels) for how in kinds},
        )

    return Section(
        title="Time to first token, " + ("measured" if report.ttft_measured else "by a model"),
        columns=("prompt tokens", "KV", ">turns", ">p50 s", ">p95 s", ">p99 s"),
        rows=tuple(
            (row.prompt, row.how, row.seconds.count, *_three(row.seconds)) for row in report.ttft
        ),
        plots=tuple(plot(name) for name in ("p50", "p95", "p99")),
    )


def _three(seconds: Spread) -> tuple[str, str, str]:
    return f"{seconds.p50:,.3f}", f"{seconds.p95:,.3f}", f"{seconds.p99:,.3f}"


def _link(link: Link) -> str:
    return f"{link.source} to {link.target}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds / 3_600:,.1f} h"
