"""Which retention settings are in force, and whose word each is."""

from __future__ import annotations

from typing import Any

from kvferry.cli.checks.finding import Finding, ok
from kvferry.cli.checks.nodes import joined
from kvferry.cli.keepview import in_force, names
from kvferry.core.state import State
from kvferry.replay.retained import keeps

Document = dict[str, Any]


def in_force_by_node(state: State) -> dict[str, Document]:
    """By space and node how each keeps that has joined: as `kvferry policy --json` says."""
    found: dict[str, Document] = {}
    for node in joined(state):
        if node.blocks or node.host_blocks:
            said = keeps(state.spaces[node.space], node)
            found.setdefault(node.space, {})[node.name] = said
    return found


def check_keeping(state: State) -> list[Finding]:
    """A finding for all nodes of a space that keep alike. None is wrong: an operator chose it."""
    alike: dict[tuple[str, str], list[str]] = {}
    for space, nodes in in_force_by_node(state).items():
        for name, now in nodes.items():
            node = state.spaces[space].nodes[name]
            told = in_force(now, node.blocks, node.host_blocks)
            alike.setdefault((space, told), []).append(name)
    return [ok(f"retention of {names(nodes)}", told) for (_, told), nodes in alike.items()]
