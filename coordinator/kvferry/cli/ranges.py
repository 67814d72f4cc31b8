"""``--from`` and ``--to``: a range of the ledger, open at either end."""

from __future__ import annotations

from typing import Annotated

import typer

from kvferry.cli.seek import end_seq, start_seq
from kvferry.cli.times import FORMS, Point, parse_point, wall_ms
from kvferry.ports.log import LogPort

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="SEQ|TIME", help=f"First message: {FORMS}.", show_default=False),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="SEQ|TIME", help="Last message, in the same forms.", show_default=False
    ),
]


def parse_ends(begin: str | None, end: str | None) -> tuple[Point | None, Point | None]:
    """Both ends of a range as they were typed, by one clock; None stays None.

    Raises:
        ConfigError: one of them is no point on a ledger.
    """
    now = wall_ms()
    return (
        parse_point(begin, now) if begin is not None else None,
        parse_point(end, now) if end is not None else None,
    )


async def seqs(
    log: LogPort, stream: str, first: Point | None, last: Point | None
) -> tuple[int | None, int | None]:
    """The sequences at which a range begins and ends; None stays None."""
    return (
        await start_seq(log, stream, first) if first is not None else None,
        await end_seq(log, stream, last) if last is not None else None,
    )
