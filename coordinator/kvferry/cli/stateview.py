"""A folded state as one document with stable keys, and as tables."""

from __future__ import annotations

from typing import Any

from kvferry.cli import render
from kvferry.cli.jsonable import jsonable
from kvferry.cli.keepview import print_keeps
from kvferry.cli.times import duration
from kvferry.core.digest import digest
from kvferry.core.state import (
    COST_OFF,
    OPEN,
    NodeState,
    OfferState,
    SpaceState,
    State,
    TransferState,
)
from kvferry.replay.retained import keeps

LISTED_MAX = 50
"""Rows of a table; a JSON document always has all."""


def state_document(state: State) -> dict[str, Any]:
    """Everything that `kvferry replay` shows."""
    return {
        "position": state.position,
        "digest": digest(state),
        "quarantined_total": state.quarantined_total,
        "quarantined": jsonable(state.quarantined),
        "dropped": dict(state.dropped),
        "spaces": {name: _space(space) for name, space in sorted(state.spaces.items())},
    }


def _space(space: SpaceState) -> dict[str, Any]:
    transfers = [_transfer(one) for one in space.transfers.values()]
    return {
        "mode": space.mode,
        "modes": dict(space.modes),
        "retention": space.retention.given(),
        "retentions": {node: own.given() for node, own in space.retentions.items()},
        "policy_version": space.policy_version,
        "term": space.term,
        "leader": space.leader,
        "cost": space.cost,
        "nodes": [_node(space, node) for _, node in sorted(space.nodes.items())],
        "offers": [_offer(offer, space) for offer in space.offers.values()],
        "transfers_open": [one for one in transfers if one["phase"] == OPEN],
        "transfers_ended": [one for one in transfers if one["phase"] != OPEN],
        "rates": jsonable(space.rates),
        "prefill": jsonable(space.prefill),
        "totals": jsonable(space.totals),
    }


def _node(space: SpaceState, node: NodeState) -> dict[str, Any]:
    return {
        "node": node.name,
        "role": node.role,
        "status": node.status,
        "why": node.why,
        "address": node.address,
        "incarnation": node.incarnation,
        "epoch": node.epoch,
        "facts_seq": node.facts_seq,
        "block_size": node.block_size,
        "blocks": node.blocks,
        "block_bytes": node.block_bytes,
        "backends": list(node.backends),
        "components": dict(node.components),
        "warnings": list(node.warnings),
        "version": node.version,
        "keeps": keeps(space, node),
        "joined_ms": node.joined_ms,
    }


def _offer(offer: OfferState, space: SpaceState) -> dict[str, Any]:
    holder = space.nodes.get(offer.node)
    return {
        "offer": offer.offer,
        "node": offer.node,
        "tier": offer.tier,
        "rev": offer.rev,
        "blocks": offer.count,
        "tokens": offer.count * (holder.block_size if holder else 0),
        "tail": offer.tail.hex(),
        "ttl_ms": offer.ttl_ms,
        "stored_ms": offer.stored_ms,
        "session": offer.session,
        "request": offer.request,
    }


def _transfer(one: TransferState) -> dict[str, Any]:
    document: dict[str, Any] = jsonable(one)
    return document


def print_state(document: dict[str, Any], now_ms: int) -> None:
    """The same as tables. ``now_ms``: the moment that ages are counted back from."""
    if not document["spaces"]:
        render.line("nothing had happened yet: no node had joined")
    for name, space in document["spaces"].items():
        led = f", led by {space['leader']}, term {space['term']}" if space["leader"] else ""
        moves = "; plans move whatever is held" if space["cost"] == COST_OFF else ""
        render.heading(f"space {name}: {space['mode']}{led}{moves}")
        _print_nodes(space)
        print_keeps(space)
        _print_offers(space, now_ms)
        _print_transfers(space)
        if "totals" in space:
            _print_totals(space["totals"])
    if document["quarantined_total"]:
        render.line(f"messages that could not be decoded: {document['quarantined_total']}")
        for one in document["quarantined"]:
            render.line(f"  sequence {one['seq']} on {one['subject']}: {one['why']}")
    render.line(f"\nposition {document['position']}, digest {document['digest']}")


def _print_nodes(space: dict[str, Any]) -> None:
    render.table(
        ("node", "role", "state", "address", ">epoch", ">blocks", "incarnation"),
        (
            (
                node["node"],
                node["role"],
                f"{node['status']} ({node['why']})" if node["why"] else node["status"],
                node["address"],
                node["epoch"],
                node["blocks"],
                node["incarnation"],
            )
            for node in space["nodes"]
        ),
    )


def _print_offers(space: dict[str, Any], now_ms: int) -> None:
    offers = space["offers"]
    if not offers:
        return
    render.line(f"\noffers and leases: {len(offers)}")
    render.table(
        ("offer", "node", "tier", ">blocks", ">tokens", ">age", "session"),
        (
            (
                one["offer"],
                one["node"],
                one["tier"],
                one["blocks"],
                one["tokens"],
                duration(max(0, now_ms - one["stored_ms"])),
                one["session"],
            )
            for one in offers[-LISTED_MAX:]
        ),
    )
    _print_left_out(len(offers))


def _print_transfers(space: dict[str, Any]) -> None:
    transfers = space["transfers_open"] + space["transfers_ended"]
    if not transfers:
        return
    render.line(f"\ntransfers: {len(space['transfers_open'])} open, and the last ended ones")
    render.table(
        ("transfer", "from", "to", "phase", "reason", ">tokens", ">bytes", "by", ">ms"),
        (
            (
                one["transfer"],
                one["source"],
                one["target"],
                one["phase"],
                one["reason"],
                one["tokens"],
                render.size(one["bytes"]),
                one["backend"],
                one["total_ms"],
            )
            for one in transfers[:LISTED_MAX]
        ),
    )
    _print_left_out(len(transfers))


def _print_left_out(count: int) -> None:
    if count > LISTED_MAX:
        render.line(f"  and {count - LISTED_MAX} more; --json lists all")


def _print_totals(totals: dict[str, Any]) -> None:
    prompt = totals["prompt_tokens"]
    if not totals["requests"]:
        render.line("\nno request had ended yet")
        return
    parts = ", ".join(
        f"{word} {render.number(totals[f'{word}_tokens'])} "
        f"({render.share(totals[f'{word}_tokens'], prompt)})"
        for word in ("local", "pulled", "computed")
    )
    render.line(
        f"\n{render.number(totals['requests'])} requests, "
        f"{render.number(prompt)} prompt tokens: {parts}"
    )
