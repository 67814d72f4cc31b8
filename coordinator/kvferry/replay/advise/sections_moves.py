"""Of the report: what is reused and moved, and what that does to the first token."""

from __future__ import annotations

from kvferry.replay.advise.parts import Cell, Plot, Section, counted, rate, share, size, time
from kvferry.replay.advise.report import ALL_LENGTHS, WITH, WITHOUT, Link, Report, Ttft

LINKS_SHOWN_MAX = 20
LINKS_DRAWN_MAX, CAUSES_DRAWN_MAX = 8, 10
PERCENTILES = ("p50", "p95", "p99")
KNOWN_BY = {
    "probe": "a probe",
    "transfers": "its transfers",
    "option": "--link-gb-per-s",
    "": "",
}


def reuse(report: Report) -> Section:
    """Where turns got KV from, and why they pulled nothing."""
    rows = [(f"reused: {how}", count) for how, count in report.hits.items()]
    rows += [(f"not pulled: {cause}", count) for cause, count in report.misses.items()]
    drawn = dict(list(report.misses.items())[:CAUSES_DRAWN_MAX])
    return Section(
        title="Hits and misses",
        columns=("turns", ">count", ">share"),
        rows=tuple((name, count, share(count, report.requests)) for name, count in rows),
        plots=(
            Plot(
                title="Turns that pulled nothing, by cause",
                unit="turns",
                labels=tuple(drawn),
                series={"turns": tuple(float(count) for count in drawn.values())},
                names=True,
            ),
        )
        if drawn
        else (),
    )


def kept(report: Report) -> Section:
    """What ended offers, and when."""
    early = [row for row in report.kept if row.before_next_use][:CAUSES_DRAWN_MAX]
    return Section(
        title="How long KV was offered, and what ended it before its next use",
        lines=() if early else ("no session came back after its KV was gone",),
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
                time(row.kept_s.p50),
                time(row.kept_s.p90),
                row.before_next_use,
                time(row.too_early_s) if row.before_next_use else "",
            )
            for row in report.kept
        ),
        plots=(
            Plot(
                title="Turns whose KV had ended before them, by what ended it",
                unit="turns",
                labels=tuple(row.reason for row in early),
                series={"turns": tuple(float(row.before_next_use) for row in early)},
                names=True,
            ),
        )
        if early
        else (),
    )


def links(report: Report) -> Section:
    """What was or would be moved, and whether links carry it."""
    if not report.links:
        text = "nothing would be moved" if report.kind == "trace" else "nothing was moved"
        return Section(title="Bytes and links", lines=(text,))
    shown = report.links[:LINKS_SHOWN_MAX]
    drawn = report.links[:LINKS_DRAWN_MAX]
    most = max(max(one.peak_bytes_s, one.rate_bytes_s) for one in drawn)
    unit, per = ("GB/s", 1e9) if most >= 1e9 else ("MB/s", 1e6)
    lines = [f"{size(report.bytes_per_turn)} a turn on average"]
    if report.turn_bytes is not None:
        of = report.turn_bytes
        lines.append(
            f"for {counted(of.count, 'turn')} anything moves: half of them move up to "
            f"{size(of.p50)}, 95% up to {size(of.p95)}, 99% up to {size(of.p99)}"
        )
    if len(report.links) > len(shown):
        lines.append(f"the {len(shown)} busiest of {len(report.links)} links")
    return Section(
        title="Bytes a turn, and whether links carry them",
        lines=tuple(lines),
        columns=("link", ">moves", ">moved", ">at peak", ">carries", ">used at peak", "known by"),
        rows=tuple(
            (
                _name(one),
                one.moves,
                size(one.bytes),
                rate(one.peak_bytes_s),
                rate(one.rate_bytes_s) if one.rate_bytes_s else "unknown",
                share(one.peak_bytes_s, one.rate_bytes_s),
                KNOWN_BY.get(one.measured, one.measured),
            )
            for one in shown
        ),
        plots=(
            Plot(
                title="Links in their busiest ten seconds, and what they carry",
                unit=unit,
                labels=tuple(_name(one) for one in drawn),
                series={
                    "at peak": tuple(one.peak_bytes_s / per for one in drawn),
                    "carries": tuple(one.rate_bytes_s / per or None for one in drawn),
                },
                names=True,
            ),
        ),
    )


def ttft(report: Report) -> list[Section]:
    """TTFT by prompt length, with reuse and without; of a ledger also by how KV was come by."""
    kinds = (WITHOUT, WITH)
    by: dict[str, list[Ttft]] = {}
    for row in report.ttft:
        if row.how in kinds:
            by.setdefault(row.prompt, []).append(row)
    said = "" if report.ttft_measured else ", by a model"
    parts = [
        Section(
            title=f"Time to first token without reuse and with it{said}",
            columns=("prompt tokens", "KV", ">turns", ">p50", ">p95", ">p99"),
            rows=tuple(_times(row) for rows in by.values() for row in rows),
            plots=tuple(_lengths(prompt, rows, kinds) for prompt, rows in by.items()),
        )
    ]
    measured = tuple(_times(row) for row in report.ttft if row.how not in kinds)
    if measured:
        parts.append(
            Section(
                title="Time to first token by where KV came from, measured",
                lines=("prompts that are pulled are longer than others: compare like lengths",),
                columns=parts[0].columns,
                rows=measured,
            )
        )
    return parts


def _lengths(prompt: str, rows: list[Ttft], kinds: tuple[str, ...]) -> Plot:
    """Prompts of like length; kinds keep their colour though one has none of these."""
    longest_s = max(getattr(row.seconds, name) for row in rows for name in PERCENTILES)
    unit, times = ("s", 1.0) if longest_s >= 1 else ("ms", 1_000.0)
    found = {row.how: row.seconds for row in rows}
    tokens = prompt if prompt == ALL_LENGTHS else f"{prompt} tokens"
    return Plot(
        title=f"TTFT, {tokens}",
        unit=unit,
        axis="percentile of turns",
        labels=PERCENTILES,
        series={
            kind: tuple(
                getattr(found[kind], name) * times if kind in found else None
                for name in PERCENTILES
            )
            for kind in kinds
        },
    )


def _times(row: Ttft) -> tuple[Cell, ...]:
    of = row.seconds
    return (row.prompt, row.how, of.count, time(of.p50), time(of.p95), time(of.p99))


def _name(link: Link) -> str:
    return f"{link.source} to {link.target}"
