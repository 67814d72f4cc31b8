"""The part of a state document that certain nodes have."""

from __future__ import annotations

from typing import Any

from kvferry.core.cost import pair_key

Document = dict[str, Any]


def only(document: Document, nodes: frozenset[str]) -> Document:
    """Spaces of these nodes with their offers, transfers from and to them, and what was learned
    of them. Totals are of a whole space, so they are left out; the digest stays the state's own.
    """
    spaces = {
        name: _part(space, nodes)
        for name, space in document["spaces"].items()
        if any(one["node"] in nodes for one in space["nodes"])
    }
    return document | {"spaces": spaces}


def _part(space: Document, nodes: frozenset[str]) -> Document:
    def moves(transfers: list[Document]) -> list[Document]:
        return [one for one in transfers if {one["source"], one["target"]} & nodes]

    part = space | {
        "modes": {node: mode for node, mode in space["modes"].items() if node in nodes},
        "retentions": {n: own for n, own in space["retentions"].items() if n in nodes},
        "nodes": [one for one in space["nodes"] if one["node"] in nodes],
        "offers": [one for one in space["offers"] if one["node"] in nodes],
        "transfers_open": moves(space["transfers_open"]),
        "transfers_ended": moves(space["transfers_ended"]),
        "rates": {link: rate for link, rate in space["rates"].items() if _of_link(link) & nodes},
        "prefill": {node: cost for node, cost in space["prefill"].items() if node in nodes},
    }
    del part["totals"]
    return part


def _of_link(link: str) -> set[str]:
    """Source and target of a key of rates."""
    source, _, target = link.rpartition("/")[0].partition(pair_key("", ""))
    return {source, target}
