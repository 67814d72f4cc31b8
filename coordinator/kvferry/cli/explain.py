"""`kvferry explain`: the whole story of one request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import FileOption, JsonOption, NatsOption, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.times import clock
from kvferry.replay.explain import ITEMS_MAX, Story, explain


@guard.guarded
def command(
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST",
            help="The engine's request id, the router's (x-kvferry-request), the client's "
            "X-Request-Id, or a transfer's id.",
        ),
    ],
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what happened to a request: what was reused from where, or why nothing was.

    Reads the ledger itself, so it works without a coordinator. An unknown id gets the nearest
    known ones, and code 1.

    Examples:

      kvferry explain chatcmpl-8f2c41d0

      kvferry explain chatcmpl-8f2c41d0 --json

      kvferry explain chatcmpl-8f2c41d0 --file monday.kvf
    """
    story = guard.run(_read(nats, file, request))
    if as_json:
        print_document(story)
    elif story.found:
        _print(story)
    if not story.found:
        if not as_json:
            guard.complain(_unknown(story))
        raise typer.Exit(guard.TROUBLE)


async def _read(nats: str | None, file: Path | None, request: str) -> Story:
    async with open_log(nats, file) as ledger:
        return await explain(ledger, request)


def _print(story: Story) -> None:
    render.line(f"request {', '.join(story.requests) or story.asked}")
    for item in story.items:
        detail = "  (detail)" if item.lane == "blocks" else ""
        render.line(f"  {item.seq:>7}  {clock(item.stored_ms)}  {item.text}{detail}")
    if story.truncated:
        render.line(f"  only the first {ITEMS_MAX} events are shown")
    render.line(f"\n{story.conclusion}")
    if story.cure:
        render.line(f"cure: {story.cure}")


def _unknown(story: Story) -> str:
    text = f"the ledger knows no request {story.asked!r}"
    if story.near:
        return f"{text}\nknown ones: {', '.join(story.near)}"
    return f"{text}; it holds no request at all yet, or has dropped them by age"
