"""`kvferry explain`: the whole story of one request, session, transfer or block."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.cli.times import clock, duration
from kvferry.errors import ConfigError
from kvferry.replay.blockstory import NAMED, as_hash
from kvferry.replay.explain import ITEMS_MAX, explain
from kvferry.replay.fate import FATES
from kvferry.replay.stories import REQUEST, SESSION, MissCause, Story
from kvferry.replay.timing import Part
from kvferry.replay.words import counted

CAUSES_SHOWN_MAX = 20
TIMED_SHOWN_MAX = 40
"""Requests and pins whose times are printed; a JSON document always has all."""


@guard.guarded
def command(
    asked: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST|SESSION|TRANSFER|SEND|BLOCK",
            help="The engine's request id, the router's (x-kvferry-request), the client's "
            "X-Request-Id; the id of a session, a transfer or a send to a TileRT node; or a "
            "block's chain hash, 64 hex digits or the first 16.",
        ),
    ],
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of a request, session, transfer or block, in order and in plain words.

    What was reused from where and how long each part took, or why nothing was: never produced,
    evicted (when, why, how long before it was wanted), source gone, diverged, refused, too dear
    (with the numbers), plan late, or transfer failed (where).

    Reads the ledger itself, so it works without a coordinator. An unknown id gets the nearest
    known ones of every kind, and code 1.

    Examples:

      kvferry explain chatcmpl-8f2c41d0

      kvferry explain chatcmpl-8f2c41d0 --json

      kvferry explain my-session --file monday.kvf

      kvferry explain 3f9a1c0be4d27781             a block, by the start of its chain hash
    """
    if not asked.strip():
        raise ConfigError("name a request, session, transfer or block; `kvferry events` lists them")
    story = guard.run(_read(nats, file, asked))
    if as_json:
        print_document(story)
    elif story.found:
        _print(story)
    if not story.found:
        if not as_json:
            guard.complain(_unknown(story))
        raise typer.Exit(guard.TROUBLE)


async def _read(nats: str | None, file: Path | None, asked: str) -> Story:
    async with open_log(nats, file) as ledger:
        with progress("reading the ledger") as report:
            return await explain(ledger, asked, progress=report)


def _print(story: Story) -> None:
    names = ", ".join(story.requests) or story.asked
    render.line(f"request {names}" if story.kind == REQUEST else f"{story.kind} {story.asked}")
    if story.kind != REQUEST and story.requests:
        render.line(f"of requests {names}")
    for item in story.items:
        detail = "  (detail)" if item.lane == "blocks" else ""
        render.line(f"  {item.seq:>7}  {clock(item.by_ms)}  {item.text}{detail}")
    if story.truncated:
        render.line(f"  only the first {ITEMS_MAX} events are shown")
    _print_times(story.parts)
    render.line(f"\n{story.conclusion}")
    # What the conclusion of a request says already is not said again.
    whys = [one for one in story.causes if story.kind != REQUEST or one.how in FATES or one.offer]
    alone = len({one.request for one in whys}) == 1 and story.kind != SESSION
    for cause in whys[:CAUSES_SHOWN_MAX]:
        render.line(f"why: {_why(cause, alone=alone)}")
    if len(whys) > CAUSES_SHOWN_MAX:
        render.line(f"why: {len(whys) - CAUSES_SHOWN_MAX:,} more; see --json")
    if story.cure:
        render.line(f"cure: {story.cure}")
    if story.unread:
        render.line(f"note: {_unread(story)}")


def _print_times(parts: tuple[Part, ...]) -> None:
    took: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        took.setdefault((part.node, part.of), []).append(f"{part.what} {duration(part.ms)}")
    if took:
        render.line("\ntimes, each on its node's own clock:")
    for (node, of), listed in list(took.items())[:TIMED_SHOWN_MAX]:
        render.line(f"  {node}  {of}: {', '.join(listed)}")
    if len(took) > TIMED_SHOWN_MAX:
        render.line(f"  {len(took) - TIMED_SHOWN_MAX:,} more; see --json")


def _why(cause: MissCause, *, alone: bool) -> str:
    who = "" if alone else f"{cause.node}, request {cause.request}: "
    when = f" (at {clock(cause.ended_ms)}, message {cause.ended_seq})" if cause.ended_seq else ""
    return f"{who}{cause.text}{when}"


def _unread(story: Story) -> str:
    many = f"{counted(story.unread, 'message')} could not be read and may be missing here"
    return f"{many}; the first is {story.unread_why}"


def _unknown(story: Story) -> str:
    text = f"the ledger knows no request, session, transfer or block {story.asked!r}"
    if story.is_node:
        text += f", but a node of that name: `kvferry replay --node {story.asked}` shows it"
    if as_hash(story.asked):
        text += f"; {NAMED}"
    if story.unread:
        text += f"; {_unread(story)}"
    near = (
        ("requests", story.near),
        ("sessions", story.near_sessions),
        ("transfers", story.near_transfers),
    )
    known = [f"known {kind}: {', '.join(ids)}" for kind, ids in near if ids]
    if known:
        return "\n".join((text, *known))
    return f"{text}; it holds no request at all yet, or has dropped them by age"
