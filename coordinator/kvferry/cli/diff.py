"""`kvferry diff`: what differs between two points of a ledger, or between two ledgers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kvferry.cli import guard, render
from kvferry.cli.context import find_ledger, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.points import state_at
from kvferry.cli.progress import progress
from kvferry.cli.times import FORMS, Point, parse_point, wall_ms
from kvferry.core.state import State
from kvferry.errors import ConfigError
from kvferry.replay.diff.change import ADDED, CHANGED, REMOVED, Diff
from kvferry.replay.diff.states import compare

SHOWN_MAX = 50
"""Differences of one kind that are printed; a JSON document always has all."""
MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}


class PointsCommand(TyperCommand):
    """A command whose arguments may be points such as ``-10m``, which are no options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A leading space keeps the parser from reading options; points are stripped of it.
        return super().parse_args(
            ctx, [f" {one}" if re.match(r"-\d", one) else one for one in args]
        )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("diff", cls=PointsCommand)
@guard.guarded
def command(
    a: Annotated[
        str | None,
        typer.Argument(
            metavar="[A]",
            help=f"The first point: {FORMS}. It may be left out where --other is given: then it "
            "is the end.",
        ),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]", help="The second point, in the same forms; by default the end."
        ),
    ] = None,
    nats: NatsOption = None,
    file: FileOption = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--other",
            metavar="FILE|URL",
            help="Take B from this file that `kvferry export` wrote, or from the ledger of this "
            "NATS server.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what differs between two points of a ledger, or between two ledgers; code 1 if any.

    Compared are policy, nodes, offers, leases, transfers, totals and what was learned. Positions
    and store times do not count, so that a ledger and its import are the same. Folds the ledger
    itself, so it works without a coordinator.

    Examples:

      kvferry diff -1h now                        what the last hour changed

      kvferry diff 81234 81300 --json

      kvferry diff 81234 --file monday.kvf        from there to the file's end

      kvferry diff --file monday.kvf --other tuesday.kvf
    """  # fmt: skip
    if a is None and other is None:
        raise ConfigError("give two points, as in `kvferry diff -1h now`, or a second source with "
                          "--other")  # fmt: skip
    for one in (a, b):
        if one is not None and Path(one).is_file():
            raise ConfigError(
                f"{one} is a file, and A and B are points: `kvferry diff --file ONE --other TWO` "
                "compares two files"
            )
    now = wall_ms()
    points = [parse_point(one, now) if one is not None else Point() for one in (a, b)]
    done = guard.run(_diff(nats, file, other, points[0], points[1]))
    if as_json:
        print_document(done)
    else:
        _print(done)
    if not done.same:
        raise typer.Exit(guard.TROUBLE)


async def _diff(nats: str | None, file: Path | None, other: str | None, a: Point, b: Point) -> Diff:
    name = str(file) if file is not None else find_ledger(nats).shown
    first = await _fold(nats, file, a)
    if other is None:
        return compare(first, await _fold(nats, file, b), source_a=name, source_b=name)
    if "://" in other:
        second, shown = await _fold(other, None, b), find_ledger(other).shown
    else:
        second, shown = await _fold(None, Path(other), b), other
    return compare(first, second, source_a=name, source_b=shown)


async def _fold(nats: str | None, file: Path | None, point: Point) -> State:
    async with open_log(nats, file) as log:
        with progress("folding") as report:
            return await state_at(log, point, progress=report)


def _print(done: Diff) -> None:
    for mark, side in (("A", done.a), ("B", done.b)):
        render.line(f"{mark}: {side.source} at {side.position:,}, digest {side.digest[:16]}")
    if done.same:
        render.line("the same: policy, nodes, offers, leases, transfers, totals, what was learned")
        return
    spaces = dict.fromkeys(one.space for one in done.changes)
    for space in spaces:
        render.heading(f"space {space}")
        printed: dict[str, int] = {}
        for one in (change for change in done.changes if change.space == space):
            printed[one.kind] = printed.get(one.kind, 0) + 1
            if printed[one.kind] <= SHOWN_MAX:
                kind = f"{one.kind}: " if one.id in one.fields else ""
                render.line(f"  {MARKS[one.change]} {kind}{one.text}")
        for kind, count in printed.items():
            if count > SHOWN_MAX:
                render.line(f"  {count - SHOWN_MAX:,} more of kind {kind}; see --json")
    counted = ", ".join(f"{count:,} {kind}" for kind, count in done.counts.items())
    render.line(f"\n{len(done.changes):,} differences: {counted} (+ only in B, - only in A)")
