"""Of the report: what is reused and moved, and what that does to the first token."""

from __future__ import annotations

from kvferry.replay.advise.parts import Plot, Section, share, time
from kvferry.replay.advise.report import Link, Report, Spread

LINKS_SHOWN_MAX = 20


def reuse(report: Report) -> Section:
    """Where turns got KV from, and why they pulled nothing."""
    rows = [(f"reused: {how}", count) for how, count in report.hits.items()]
    rows += [(f"not pulled: {cause}", count) for cause, count in report.misses.items()]
    return Section(
        title="Hits and misses",
        columns=("turns", ">count", ">share"),
        rows=tuple((name, count, share(count, report.requests)) for name, count in rows),
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


def kept(report: Report) -> Section:
    """What ended offers, and when."""
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
                time(row.kept_s.p50),
                time(row.kept_s.p90),
                row.before_next_use,
                time(row.too_early_s) if row.before_next_use else "",
            )
            for row in report.kept
        ),
    )


def links(report: Report) -> Section:
    """What was or would be moved, and whether links carry it."""
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
                share(one.peak_bytes_s, one.rate_bytes_s),
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


def ttft(report: Report) -> Section:
    """TTFT by prompt length and by how KV was come by."""
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
