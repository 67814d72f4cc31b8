"""The report as headings, lines, tables and plots, for whatever shows it."""

from __future__ import annotations

from kvferry.replay.advise.parts import Cell, Plot, Section, counted, share, size, time
from kvferry.replay.advise.report import DO_NOT_ENABLE, ENABLE, TOO_LITTLE, Keeping, Report
from kvferry.replay.advise.sections_moves import kept, links, reuse, ttft

TITLE = "Does moving KV between engines pay here?"
WORDS = {
    ENABLE: "Enable it.",
    DO_NOT_ENABLE: "Do not enable this.",
    TOO_LITTLE: "Too little was seen to say.",
}


def source(report: Report) -> str:
    """What the report was made from."""
    return f"From {report.of}"


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
        parts += ttft(report)
    if report.assumptions:
        parts.append(Section(title="What was assumed", lines=report.assumptions))
    return parts


def _verdict(report: Report) -> Section:
    return Section(
        title="Recommendation: " + WORDS[report.verdict.word],
        lines=(
            *(reason.text for reason in report.verdict.reasons),
            "The rule: " + report.verdict.rule,
        ),
    )


def _traffic(report: Report) -> Section:
    lines = [
        f"{counted(report.requests, 'turn')} of {counted(report.sessions, 'session')} in "
        f"{time(report.span_s)}, with {counted(report.prompt_tokens, 'prompt token')}",
    ]
    if report.prompt_tokens:
        lines.append(
            f"{share(report.repeated_tokens, report.prompt_tokens)} of them repeat what had been "
            "computed before"
        )
    if report.prompt_tokens and report.reused_tokens is not None:
        lines.append(
            f"{share(report.reused_tokens, report.prompt_tokens)} of them were not computed again"
        )
    if report.prompt_sent:
        lines.append(
            f"{counted(report.prompt_sent, 'prompt token')} more were sent to TileRT nodes, for "
            "prompts that a prefill engine had computed or reused"
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
        columns=(
            "turn",
            ">turns",
            ">mean prompt, tokens",
            ">repeated",
            *((">reused",) if reused else ()),
        ),
        rows=tuple(rows),
        plots=(
            Plot(
                title="Share of the prompt that repeats what had been computed before",
                unit="% of prompt tokens",
                axis="turn of the session",
                labels=tuple(row.turn for row in report.shares),
                series=series,
            ),
        ),
    )


def _gaps(report: Report) -> Section:
    gaps = report.gaps_s
    if gaps is None:
        return Section(title="Gaps between turns", lines=("no session came back",))
    lines = [
        f"half of {counted(gaps.count, 'gap')} last up to {time(gaps.p50)}, 90% up to "
        f"{time(gaps.p90)}, 99% up to {time(gaps.p99)}"
    ]
    if report.kind == "ledger":
        late = sum(row.before_next_use for row in report.kept)
        lines.append(
            f"{counted(late, 'turn')} came when nothing of the session was offered any more "
            f"({share(late, gaps.count)} of those with a turn before)"
        )
    found = report.keeping[0].repeated_tokens is not None
    series = {
        "gaps no longer": tuple(100 * (row.gaps_share or 0.0) for row in report.keeping),
    }
    columns: tuple[str, ...] = ("KV kept for", ">gaps no longer")
    if found:
        columns += (">of prompts found", ">held on average")
        series["prompt tokens found"] = tuple(
            100 * (row.repeated_tokens or 0) / max(1, report.prompt_tokens)
            for row in report.keeping
        )
    return Section(
        title="Gaps between turns against how long KV is kept",
        lines=tuple(lines),
        columns=columns,
        rows=tuple(_keeping(row, report.prompt_tokens) for row in report.keeping),
        plots=(
            Plot(
                title="What keeping KV for so long would catch",
                unit="%",
                axis="KV kept after its last use",
                labels=tuple(time(row.keep_s) for row in report.keeping),
                series=series,
            ),
        ),
    )


def _keeping(row: Keeping, prompt_tokens: int) -> tuple[Cell, ...]:
    cells: tuple[Cell, ...] = (time(row.keep_s), f"{row.gaps_share or 0.0:.1%}")
    if row.repeated_tokens is not None:
        held = size(row.mean_bytes) if row.mean_bytes is not None else ""
        cells += (share(row.repeated_tokens, prompt_tokens), held)
    return cells
