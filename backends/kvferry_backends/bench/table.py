"""A measurement for people: a table, what is left out and why, and a progress line."""

from __future__ import annotations

import shutil
import sys

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvferry_backends.bench.run import Report, Row, Step, row_count
from kvferry_backends.bench.settings import Settings, shown

PIPE_COLUMNS = 200
RAW = {
    "memcpy": "one memcpy of the same bytes",
    "device_copy": "one plain copy between the two devices",
    "stream": "one plain TCP stream of the same bytes",
}


class Progressing:
    """A line on stderr that says what is measured now; nothing where stderr is no terminal."""

    def __init__(self, settings: Settings) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=row_count(settings))
        self._begun = False

    def __enter__(self) -> Progressing:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def next_is(self, step: Step) -> None:
        """A row begins, so the one before has ended."""
        if self._begun:
            self._progress.advance(self._task)
        self._begun = True
        text = f"{step.backend} {shown(step.block_bytes)} {step.pattern} {step.direction}"
        self._progress.update(self._task, description=text)


def show(report: Report) -> None:
    """The table on stdout, and below it what stands in no row."""
    out = Console(width=_width(), highlight=False)
    for name, what in report.ends.items():
        out.print(escape(f"{name}: {what}"))
    if report.rows:
        out.print(_table(report))
        for raw in dict.fromkeys(row.raw for row in report.rows):
            out.print(escape(f"raw {raw}: {RAW[raw]}, measured in turn with the reads"))
    for end, reasons in report.left_out.items():
        for backend, why in reasons.items():
            out.print(escape(f"{backend} is left out at {end}: {why}"), soft_wrap=True)
    for one in report.failures:
        row = f"{one.backend} {shown(one.block_bytes)} {one.pattern} {one.direction}"
        out.print(escape(f"{row} FAILED: {one.error}"), soft_wrap=True)
    if report.ended_early:
        out.print(escape(f"ended early: {report.ended_early}"), soft_wrap=True)


def _table(report: Report) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("backend", "block", "pattern", "direction"):
        grid.add_column(title)
    for title in ("GB/s", "of raw", "raw GB/s", "1 block p50 ms", "p99 ms"):
        grid.add_column(title, justify="right")
    for row in report.rows:
        grid.add_row(
            escape(row.backend),
            _block(row),
            row.pattern,
            row.direction,
            f"{row.gb_per_s:.2f}",
            f"{100 * row.share_of_raw:.0f} %",
            f"{row.raw_gb_per_s:.2f} {row.raw}",
            f"{row.p50_ms:.3f}",
            f"{row.p99_ms:.3f}",
        )
    return grid


def _block(row: Row) -> str:
    return f"{row.layers} x {shown(row.block_bytes)}" if row.layers > 1 else shown(row.block_bytes)


def _width() -> int:
    if sys.stdout.isatty():
        return max(80, shutil.get_terminal_size().columns)
    return PIPE_COLUMNS
