"""What a state says, for people and as JSON: the same from a coordinator and from a replay."""

from __future__ import annotations

import math
from typing import Any

from kvferry.core.accuracy import accuracy, of_transfers
from kvferry.core.leases import HOST
from kvferry.core.slots_state import Slots
from kvferry.core.state import FENCED, JOINED, OPEN, NodeState, SpaceState, State
from kvferry.ids import ROUTER_SPACE
from kvferry.replay.causes import cause
from kvferry.replay.retained import keeps, leases, sessions
from kvferry.replay.slots import summarize_leases, summarize_slots

MISSES_MAX = 8
OPEN_TRANSFERS_MAX = 100
PREFILL_LENGTHS = (1_000, 8_000, 32_000)
"""Prompts whose speed is shown: long ones are slower by the token."""

Document = dict[str, Any]


def summarize(state: State) -> Document:
    """The state as plain mappings, lists, numbers and strings.

    ``spaces`` maps a space's name to what :func:`summarize_space` gives; routers stand under
    ``routers``, with the decode nodes that they lend. ``advice`` says in plain words what has to
    happen first where there is nothing to show yet.
    """
    spaces = {
        name: summarize_space(space)
        for name, space in sorted(state.spaces.items())
        if name != ROUTER_SPACE
    }
    routers = state.spaces.get(ROUTER_SPACE)
    return {
        "position": state.position,
        "spaces": spaces,
        "routers": {
            "nodes": [] if routers is None else [_node(routers, n) for n in _by_name(routers)],
            "turns": 0 if routers is None else routers.totals.turns,
            "slots": [] if routers is None else summarize_slots(routers.slots),
            "leases": summarize_leases(Slots() if routers is None else routers.slots),
        },
        "quarantined": {
            "total": state.quarantined_total,
            "last": [
                {"seq": one.seq, "subject": one.subject, "why": one.why}
                for one in state.quarantined
            ],
        },
        "dropped": dict(sorted(state.dropped.items())),
        "advice": _advice(spaces),
    }


def summarize_space(space: SpaceState) -> Document:
    """One space: nodes, offers by tier, transfers, reuse, misses with their cures, rates."""
    totals = space.totals
    running = [one for one in space.transfers.values() if one.phase == OPEN]
    return {
        "mode": space.mode,
        "modes": dict(sorted(space.modes.items())),
        "retention": space.retention.given(),
        "retentions": {node: own.given() for node, own in sorted(space.retentions.items())},
        "policy_version": space.policy_version,
        "term": space.term,
        "leader": space.leader,
        "cost": space.cost,
        "checkpoint": space.checkpoint,
        "nodes": [_node(space, node) for node in _by_name(space)],
        "offers": _tiers(space),
        "leases": leases(space),
        "sessions": sessions(space),
        "transfers": {
            "open": [
                {
                    "transfer": one.transfer,
                    "request": one.request,
                    "source": one.source,
                    "target": one.target,
                    "backend": one.backend,
                    "wanted": one.wanted,
                    "granted": one.granted,
                    "requested_ms": one.requested_ms,
                }
                for one in running[:OPEN_TRANSFERS_MAX]
            ],
            "open_total": len(running),
            "done": totals.transfers_done,
            "failed": totals.transfers_failed,
            "failures": dict(sorted(totals.failures.items())),
            "bytes_moved": totals.bytes_moved,
        },
        "reuse": _reuse(space),
        "misses": _misses(space),
        "evictions": dict(sorted(totals.evictions.items())),
        "gaps": dict(sorted(totals.gaps.items())),
        "strays": dict(sorted(totals.strays.items())),
        "links": [
            {
                "link": link,
                "n": rate.n,
                "gb_per_s": rate.bytes_per_ms() / 1e6,
                "floor_ms": rate.floor_ms(),
            }
            for link, rate in sorted(space.rates.items())
            if rate.n
        ],
        "backends": [
            {"pair": pair, "backend": choice.backend, "why": choice.why}
            for pair, choice in sorted(space.choices.items())
        ],
        "predictions": [
            {"what": one.what, "key": one.key, "n": one.n}
            | {name: round(getattr(one, name), 4) for name in ("bias", "p50", "p95")}
            for one in accuracy(of_transfers(space.transfers.values()))
        ],
        "prefill": [
            {
                "node": node,
                "n": cost.n,
                "tokens_per_s": {str(n): round(cost.tokens_per_s(n)) for n in PREFILL_LENGTHS},
                "bias": round(math.expm1(cost.fit.bias), 4),
                "spread": round(cost.fit.spread, 4),
            }
            for node, cost in sorted(space.prefill.items())
            if cost.n
        ],
    }


def _by_name(space: SpaceState) -> list[NodeState]:
    return [space.nodes[name] for name in sorted(space.nodes)]


def _node(space: SpaceState, node: NodeState) -> Document:
    offers = [offer for offer in space.offers.values() if offer.node == node.name]
    blocks = sum(offer.count - offer.base for offer in offers)
    return {
        "name": node.name,
        "status": node.status,
        "why": node.why,
        "mode": space.mode_of(node.name),
        "keeps": keeps(space, node),
        "role": node.role,
        "address": node.address,
        "incarnation": node.incarnation,
        "epoch": node.epoch,
        "version": node.version,
        "block_size": node.block_size,
        "blocks": node.blocks,
        "block_bytes": node.block_bytes,
        "host_blocks": node.host_blocks,
        "backends": list(node.backends),
        "components": dict(sorted(node.components.items())),
        "warnings": list(node.warnings),
        "joined_ms": node.joined_ms,
        "facts_seq": node.facts_seq,
        "offers": len(offers),
        "offered_blocks": blocks,
        "offered_tokens": blocks * node.block_size,
    }


def _tiers(space: SpaceState) -> Document:
    """By tier; blocks that several offers share count once for each."""
    tiers: Document = {}
    for offer in space.offers.values():
        node = space.nodes.get(offer.node)
        tier = tiers.setdefault(offer.tier, {"offers": 0, "blocks": 0, "tokens": 0})
        blocks = offer.count - offer.base
        tier["offers"] += 1
        tier["blocks"] += blocks
        tier["tokens"] += blocks * (node.block_size if node is not None else 0)
    room = sum(node.host_blocks for node in space.nodes.values() if node.status == JOINED)
    if room:
        tiers.setdefault(HOST, {"offers": 0, "blocks": 0, "tokens": 0})["room"] = room
    return dict(sorted(tiers.items()))


def _reuse(space: SpaceState) -> Document:
    totals = space.totals

    def share(tokens: int) -> float | None:
        return tokens / totals.prompt_tokens if totals.prompt_tokens else None

    return {
        "requests": totals.requests,
        "prompt_tokens": totals.prompt_tokens,
        "local_tokens": totals.local_tokens,
        "pulled_tokens": totals.pulled_tokens,
        "computed_tokens": totals.computed_tokens,
        "output_tokens": totals.output_tokens,
        "prompt_sent": totals.prompt_sent,
        "bytes_sent": totals.bytes_sent,
        "unbalanced": totals.unbalanced,
        "local_share": share(totals.local_tokens),
        "pulled_share": share(totals.pulled_tokens),
        "computed_share": share(totals.computed_tokens),
    }


def _misses(space: SpaceState) -> list[Document]:
    counted = sorted(space.totals.misses.items(), key=lambda item: (-item[1], item[0]))
    return [
        {
            "cause": word,
            "count": count,
            "meaning": cause(word).meaning,
            "cure": cause(word).cure,
        }
        for word, count in counted[:MISSES_MAX]
    ]


def _advice(spaces: dict[str, Document]) -> list[str]:
    if not spaces:
        return [
            "no node has joined yet: start an engine with the kvferry connector and this NATS url"
        ]
    advice: list[str] = []
    for name, space in spaces.items():
        nodes = space["nodes"]
        joined = [node for node in nodes if node["status"] == JOINED]
        fenced = [node["name"] for node in nodes if node["status"] == FENCED]
        if fenced:
            advice.append(
                f"{name}: the records of {', '.join(fenced)} have a hole; each is asked for an "
                "inventory and counts again when it arrives"
            )
        if not joined:
            advice.append(f"{name}: no node is joined now: start an engine, or look why they left")
        elif len(joined) == 1:
            advice.append(
                f"{name}: only {joined[0]['name']} is joined: nothing can be pulled until a "
                "second engine with the same model and flags joins; `kvferry doctor` tells why "
                "one that runs is in another space"
            )
        if not space["reuse"]["requests"]:
            advice.append(f"{name}: no request has ended yet: send one")
        elif not any(tier["offers"] for tier in space["offers"].values()):
            advice.append(
                f"{name}: nothing is offered now: a request that ends with at least one full "
                "block leaves an offer, as long as the engine does not need the memory"
            )
        elif not space["transfers"]["done"] and len(joined) > 1:
            advice.append(
                f"{name}: nothing was pulled yet: the first turn that continues a prompt on "
                "another node does it; the misses say why the others did not"
            )
    return advice
