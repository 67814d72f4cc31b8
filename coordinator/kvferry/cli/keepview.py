"""How nodes keep, as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvferry.cli import render
from kvferry.core.retention_settings import RetentionSettings, in_words

Document = dict[str, Any]
FLAGS = {
    "lease_ms": "--ttl",
    "retain_max_ms": "--retain-max",
    "lease_budget": "--lease-budget",
    "free_watermark": "--free-watermark",
    "host_budget": "--host-budget",
}
"""The settings, and the option of `kvferry policy` that sets each."""
COLUMNS = {
    "lease_ms": "lease lasts",
    "lease_budget": "leased at most",
    "free_watermark": "free at least",
    "retain_max_ms": "a request may ask for",
    "host_budget": "host tier",
}
SET = " *"
NAMES_SHOWN_MAX = 6


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


def in_force(now: Document, blocks: int, host_blocks: int) -> str:
    """How a node keeps, in a sentence, and by whose word.

    Args:
        now: what :func:`kvferry.replay.retained.keeps` says.
        blocks: of the node's pool; 0 for a node that has a host tier only.
        host_blocks: of its host tier; 0 for none.
    """
    settings = RetentionSettings(
        lease_ms=now["lease_ms"] if blocks else None,
        retain_max_ms=now["retain_max_ms"],
        lease_budget=_share(now["lease_blocks"], blocks),
        free_watermark=_share(now["watermark_blocks"], blocks),
        host_budget=_share(now["host_blocks"], host_blocks),
    )
    told = in_words(settings)
    if not now["said"]:
        told += "; older, and does not say how it was started: the connector's defaults"
    if now["set"]:
        return f"{told}; set by `kvferry policy`: {', '.join(FLAGS[one] for one in now['set'])}"
    return f"{told}; all as started"


def names(nodes: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(nodes) - NAMES_SHOWN_MAX
    return ", ".join(nodes[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _share(some: int, of: int) -> float | None:
    """A share as it was probably given, for whole blocks make 9.96 % of 10 %; None of nothing."""
    if not of:
        return None
    return round(some / of, 3) or some / of


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
