"""A frame of `kvferry top` as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvferry.cli import render
from kvferry.cli.changeview import plain
from kvferry.cli.grid import grid
from kvferry.cli.times import clock, duration
from kvferry.cli.topkeeps import keeps_table
from kvferry.cli.topslots import slot_table
from kvferry.replay.live.rows import Frame, LinkRow, NodeRow, SpaceFrame, Use, Window

NODES_SHOWN_MAX = 24
LINKS_SHOWN_MAX = 6
MOVING_SHOWN_MAX = 4
MISSES_SHOWN_MAX = 5
SPAN_WORDS = {10: "10 s", 60: "1 min", 300: "5 min"}
KEYS = "q quits, p pauses the screen"


def draw(frame: Frame, *, keys: str = "", paused: bool = False, remark: str = "") -> Group:
    """Everything that changes often stands on top: a terminal cuts off at the bottom.

    Args:
        frame: what to draw.
        keys: what can be pressed; empty where nothing can.
        paused: the screen stands still, while the fold goes on.
        remark: the last warning of the log, which has no other place to go.
    """
    parts: list[RenderableType] = [_head(frame, keys, paused)]
    if frame.trouble:
        parts.append(_line(f"ledger: {frame.trouble}", "bold red"))
    if remark:
        parts.append(_line(remark, "yellow"))
    parts.append(_line(_coordinators(frame), ""))
    if not frame.spaces:
        parts.append(
            _line("no node has joined yet: start an engine with the kvferry connector", "")
        )
    for space in frame.spaces:
        parts += _space(space)
    if frame.slots:
        parts += [Text(""), slot_table(frame.slots)]
    if frame.routers:
        names = ", ".join(frame.routers)
        parts.append(_line(f"routers: {names}; {render.number(frame.turns)} turns answered", ""))
    if frame.quarantined:
        parts.append(
            _line(f"{frame.quarantined} messages cannot be decoded: see `kvferry status`", "yellow")
        )
    return Group(*parts)


def _line(text: str, style: str) -> Text:
    return Text(plain(text), style=style, no_wrap=True, overflow="ellipsis")


def _head(frame: Frame, keys: str, paused: bool) -> Text:
    behind = ""
    if frame.lag_messages:
        behind = f", {render.number(frame.lag_messages)} behind ({duration(frame.lag_ms)})"
    head = _line(f"kvferry top  {clock(frame.time_ms)[:8]}  fact {frame.position}{behind}", "bold")
    if paused:
        head.append("  PAUSED", style="bold reverse")
    if keys:
        head.append(f"   {keys}", style="dim")
    return head


def _coordinators(frame: Frame) -> str:
    if not frame.replicas:
        return "coordinator: none is heard; engines serve by hints, everything else recomputes"
    said = []
    for one in frame.replicas:
        role = f"leads, term {one.term}" if one.leader else "stands by"
        late = f", {render.number(one.lag_messages)} behind" if one.lag_messages else ""
        silent = f", silent for {duration(1_000 * one.silent_s)}" if one.silent_s > 3 else ""
        said.append(f"{one.replica} {role}{late}{silent}")
    return f"coordinator: {'; '.join(said)}"


def _space(space: SpaceFrame) -> list[RenderableType]:
    led = f", led by {space.leader}, term {space.term}" if space.leader else ""
    mode = "" if space.mode == "on" else f": {space.mode.upper()}, `kvferry resume` ends it"
    parts: list[RenderableType] = [
        Text(""),
        _line(f"space {space.space}{mode}{led}", "bold cyan"),
        _nodes(space),
        _windows(space.windows),
    ]
    longest = space.windows[-1]
    if longest.seen_s < longest.span_s - 1:
        seen = duration(1_000 * longest.seen_s)
        parts.append(_line(f"the ledger still has the last {seen} only", "dim"))
    if space.links:
        parts.append(_links(space.links))
    if space.moving:
        parts += [
            _line(
                f"  {one.source} to {one.target}: {one.blocks} blocks since "
                f"{duration(one.age_ms)} ({one.transfer}, for {one.request})",
                "",
            )
            for one in space.moving[:MOVING_SHOWN_MAX]
        ]
        if space.moving_total > MOVING_SHOWN_MAX:
            parts.append(_line(f"  and {space.moving_total - MOVING_SHOWN_MAX} more", "dim"))
    lately = [one for one in space.misses if one.lately]
    if lately:
        said = ", ".join(
            f"{one.cause} {render.number(one.lately)}" for one in lately[:MISSES_SHOWN_MAX]
        )
        parts.append(_line(f"misses of the last 5 min by cause: {said}", ""))
    kept = keeps_table(space)
    return parts if kept is None else [*parts, kept]


def _nodes(space: SpaceFrame) -> Table:
    table = grid("node", "state", "heard", ">cache", ">hbm leases", ">host", ">in", ">out")
    # Those that are gone come last: they stay in the ledger for long.
    rows = sorted(space.nodes, key=lambda one: one.status != "joined")
    for one in rows[:NODES_SHOWN_MAX]:
        heard = "" if one.silent_s is None else f"{duration(1_000 * one.silent_s)} ago"
        table.add_row(
            plain(f"{one.node} ({one.role})" if one.role else one.node),
            Text(plain(_state(one)), style="" if one.status == "joined" else "red"),
            heard,
            _use(one.cache, one.blocks),
            _use(one.hbm, one.blocks),
            _use(one.host, one.host_blocks),
            render.number(one.receives),
            render.number(one.sends),
        )
    if len(rows) > NODES_SHOWN_MAX:
        table.add_row(f"and {len(rows) - NODES_SHOWN_MAX} more")
    return table


def _state(node: NodeRow) -> str:
    why = f" ({node.why})" if node.why else ""
    mode = "" if node.mode == "on" else f", {node.mode}"
    return f"{node.status}{why}{mode}"


def _use(use: Use, room: int) -> str:
    """Blocks of how many, and in how many runs."""
    if not use.runs and not room:
        return ""
    of = f"/{render.number(room)}" if room else ""
    return f"{render.number(use.blocks)}{of} in {render.number(use.runs)}"


def _windows(windows: tuple[Window, ...]) -> Table:
    # Prompt tokens that went to TileRT nodes; most fleets have none.
    sent = any(one.prompt_sent for one in windows)
    table = grid(
        "last", ">reqs", ">a second", ">reused", ">local", ">pulled", ">computed", ">moves",
        ">failed", ">moved", *([">sent"] if sent else []),
    )  # fmt: skip
    for one in windows:
        table.add_row(
            SPAN_WORDS.get(one.span_s, f"{one.span_s} s"),
            _short(one.requests),
            f"{one.requests_per_s:.2f}",
            "" if one.hit_share is None else f"{100 * one.hit_share:.1f} %",
            _short(one.local_tokens),
            _short(one.pulled_tokens),
            _short(one.computed_tokens),
            _short(one.transfers),
            _short(one.failed),
            f"{render.size(round(one.bytes_per_s))}/s",
            *([_short(one.prompt_sent)] if sent else []),
        )
    return table


def _short(count: int) -> str:
    """At most six characters, so that the columns fit into 80."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 10 * size:
            return f"{count / size:.1f}{unit}"
    return render.number(count)


def _links(links: tuple[LinkRow, ...]) -> Table:
    table = grid("link", ">moving", ">now", ">in the last min", ">can do")
    for one in links[:LINKS_SHOWN_MAX]:
        known = one.learned_bytes_per_s
        table.add_row(
            plain(one.link),
            render.number(one.open),
            f"{render.size(round(one.bytes_per_s))}/s",
            render.number(one.transfers),
            f"{render.size(round(known))}/s" if known else "",
        )
    return table
