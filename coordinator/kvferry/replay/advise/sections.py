"""The report as headings, lines, tables and plots, for whatever shows it."""

from __future__ import annotations

from kvferry.replay.advise.parts import Cell, Plot, Section, share, time
from kvferry.replay.advise.report import DO_NOT_ENABLE, ENABLE, TOO_LITTLE, Report
from kvferry.replay.advise.sections_moves import kept, links, reuse, ttft

TITLE = "Does moving KV between engines pay here?"
WORDS = {
    ENABLE: "Enable it.",
    DO_NOT_ENABLE: "Do not enable this.",
    TOO_LITTLE: "Too little was seen to say.",
}


def sections(report: Report) -> list[Section]:
    """All parts that the report has something to say in, the recommendation first."""
    parts = [_verdict(report), _traffic(report)]
    if report.shares:
        parts.append(_shares(report))
    parts.append(_gaps(report))
    if report.kind == "ledger":
        parts.append(reuse(report))
    if report.kept:
        parts.append(kept(report))
    parts.append(links(report))
    if report.ttft:
        parts.append(ttft(report))
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
        f"{report.requests:,} turns of {report.sessions:,} sessions in {time(report.span_s)}, "
        f"with {report.prompt_tokens:,} prompt tokens",
        f"{share(report.repeated_tokens, report.prompt_tokens)} of them repeat what had been "
        "computed before",
    ]
    if report.reused_tokens is not None:
        lines.append(
            f"{share(report.reused_tokens, report.prompt_tokens)} of them were not computed again"
        )
    return Section(title="Traffic", lines=tuple(lines))


def _shares(report: Report) -> Section:
    reused = report.reused_tokens is not None
    rows: list[tuple[Cell, ...]] = []
    for row in report.shares:
        cells = (row.turn, row.requests, row.prompt_tokens // row.requests)
        parts: tuple[Cell, ...] = (share(row.repeated_tokens, row.prompt_tokens),)
        if row.reused_tokens is not None:
            parts += (share(row.reused_tokens, row.prompt_tokens),)
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
    rows: list[tuple[Cell, ...]] = []
    columns: tuple[str, ...] = ("KV kept for", ">gaps no longer")
    for row in report.keeping:
        kept: tuple[Cell, ...] = (time(row.keep_s), f"{row.gaps_share or 0.0:.1%}")
        if row.repeated_tokens is not None:
            columns = (*columns[:2], ">of prompts found", ">GB held on average")
            held = f"{row.mean_bytes / 1e9:,.1f}" if row.mean_bytes is not None else ""
            kept += (share(row.repeated_tokens, report.prompt_tokens), held)
        rows.append(kept)
    line = (
        f"half of {gaps.count:,} gaps last up to {time(gaps.p50)}, 90 % up to {time(gaps.p90)}, "
        f"99 % up to {time(gaps.p99)}"
    )
    return Section(
        title="Gaps between turns against how long KV is kept",
        lines=(line,),
        columns=columns,
        rows=tuple(rows),
        plots=(
            Plot(
                title="Gaps that are no longer than KV is kept",
                unit="%",
                labels=tuple(time(row.keep_s) for row in report.keeping),
                series={"gaps": tuple(100 * (row.gaps_share or 0.0) for row in report.keeping)},
            ),
        ),
    )
