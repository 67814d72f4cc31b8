"""The study for people: a table for each budget, and a progress line."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvferry.bench.policy.policies import INFINITE

PIPE_COLUMNS = 200
STEP = 200
"""Requests between two movements of the bar."""
COLUMNS = (
    "policy",
    "HBM GB",
    "host GB",
    "hit share",
    "of infinite",
    "recomputed Mtok",
    "prefill s",
    "P>D TB",
    "back TB",
    "host TB",
    "delayed",
    "stalled s",
    "TTFT p50 s",
    "p95",
    "p99",
)


class Progressing:
    """A line on stderr that says what runs; nothing where stderr is no terminal."""

    def __init__(self, requests: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=requests)
        self._ended = 0

    def __enter__(self) -> Progressing:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def begin(self, policy: str, budget: int) -> None:
        """A run begins."""
        with_what = f" with {budget / 1e9:,.0f} GB" if budget else ""
        self._progress.update(self._task, description=f"{policy}{with_what}")

    def advance(self) -> None:
        """A request was answered."""
        self._ended += 1
        if self._ended % STEP == 0:
            self._progress.advance(self._task, STEP)


def show(document: dict[str, Any]) -> None:
    """The tables on stdout, and what they come to."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    out = Console(width=width, highlight=False)
    fleet = document["fleet"]
    out.print(
        f"{document['trace']['requests']:,} requests, {fleet['prefill']} prefill and "
        f"{fleet['decode']} decode engines of shape {fleet['shape']}; TTFT is a model's"
    )
    rows = document["rows"]
    for budget in dict.fromkeys(row["budget_bytes"] for row in rows if row["budget_bytes"]):
        share = budget / document["trace"]["kv_bytes"]
        out.print(f"\n{budget / 1e12:,.2f} TB in all, {share:.0%} of what an infinite cache holds")
        same = [row for row in rows if row["budget_bytes"] in (0, budget)]
        out.print(_table(same))
    for line in document["comes_to"]:
        typer.echo(line)


def _table(rows: list[dict[str, Any]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, title in enumerate(COLUMNS):
        grid.add_column(title, justify="right" if number else "left")
    for row in rows:
        grid.add_row(*_cells(row))
    return grid


def _cells(row: dict[str, Any]) -> list[str]:
    moved: dict[str, int] = row["bytes_by_link"]
    back = sum(size for way, size in moved.items() if way.endswith(">prefill"))
    host = moved.get("hbm>host", 0) + moved.get("host>hbm", 0)
    endless = row["policy"] == INFINITE
    return [
        row["policy"],
        "" if endless else f"{row['hbm_bytes_per_engine'] / 1e9:,.0f}",
        "" if endless else f"{row['host_bytes_per_engine'] / 1e9:,.0f}",
        f"{row['hit_tokens'] / row['prompt_tokens']:.1%}",
        f"{row['share_of_infinite']:.1%}",
        f"{row['recomputed_tokens'] / 1e6:,.1f}",
        f"{row['prefill_s']:,.0f}",
        f"{moved.get('prefill>decode', 0) / 1e12:,.1f}",
        f"{back / 1e12:,.2f}",
        f"{host / 1e12:,.1f}",
        f"{row['requests_delayed']:,}",
        f"{row['stalled_s']:,.0f}",
        f"{row['ttft_s_p50']:,.2f}",
        f"{row['ttft_s_p95']:,.2f}",
        f"{row['ttft_s_p99']:,.2f}",
    ]
