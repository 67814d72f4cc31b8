"""How nodes keep, as text for people."""

from __future__ import annotations

from typing import Any

import msgspec

from kvferry.cli import render
from kvferry.core.retention_settings import RetentionSettings, in_words

Document = dict[str, Any]
COLUMNS = {
    "lease_ms": "lease lasts",
    "lease_budget": "leased at most",
    "free_watermark": "free at least",
    "retain_max_ms": "a request may ask for",
    "host_budget": "host tier",
}
SET = " *"


def print_keeps(space: Document) -> None:
    """What an operator has set; nothing where nobody has set anything."""
    if space["retention"]:
        render.line(f"set by `kvferry policy`: {_words(space['retention'])}")
    for node, own in space["retentions"].items():
        render.line(f"set by `kvferry policy` for {node}: {_words(own)}")


def print_policy(name: str, space: Document) -> None:
    """How each node of a space keeps now, and which of it an operator has set."""
    render.heading(f"space {name}: {space['mode']}, policy {space['policy_version']}")
    nodes = [node for node in space["nodes"] if node["blocks"] or node["host_blocks"]]
    if not nodes:
        render.line("no engine has joined")
        return
    render.table(("node", "mode", *(f">{one}" for one in COLUMNS.values())), map(_row, nodes))
    if any(node["keeps"]["set"] for node in nodes):
        render.line("* set by an operator; the rest is as each engine was started")
    unsaid = [node["name"] for node in nodes if not node["keeps"]["said"]]
    if unsaid:
        render.line(
            f"{', '.join(unsaid)}: older, and does not say how it was started; the connector's "
            "defaults are shown"
        )


def _row(node: Document) -> tuple[object, ...]:
    now = node["keeps"]
    host = now["host_blocks"]
    cells = {
        "lease_ms": _seconds(now["lease_ms"]) if now["lease_ms"] else "nothing is leased",
        "lease_budget": _blocks(now["lease_blocks"], node["blocks"]) if node["blocks"] else "none",
        "free_watermark": _blocks(now["watermark_blocks"], node["blocks"])
        if node["blocks"]
        else "none",
        "retain_max_ms": _seconds(now["retain_max_ms"]),
        "host_budget": _blocks(host, node["host_blocks"]) if node["host_blocks"] else "none",
    }
    marked = (text + SET * (name in now["set"]) for name, text in cells.items())
    return (node["name"], node["mode"], *marked)


def _words(given: Document) -> str:
    return in_words(msgspec.convert(given, RetentionSettings))


def _seconds(value_ms: int) -> str:
    return f"{value_ms / 1_000:g} s"


def _blocks(some: int, of: int) -> str:
    return f"{render.share(some, of)} ({some:,} blocks)"
