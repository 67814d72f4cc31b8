"""What of nodes, offers, transfers, slots, policy and learned costs is compared, and in what words.

Store times and positions are left out: the same facts have others after an import.
"""

from __future__ import annotations

from typing import Any

from kvferry.core.leases import is_lease
from kvferry.core.retention_settings import in_words
from kvferry.core.slots_state import SlotState, held
from kvferry.core.state import NodeState, OfferState, SpaceState, TransferState
from kvferry.core.story import LEASES

Fields = dict[str, Any]


def policy(space: SpaceState) -> Fields:
    """What an operator set, and who leads."""
    return {
        "mode": space.mode,
        "modes": dict(sorted(space.modes.items())),
        "retention": space.retention.given(),
        "retentions": {node: in_words(own) for node, own in sorted(space.retentions.items())},
        "policy_version": space.policy_version,
        "term": space.term,
        "leader": space.leader,
        "cost": space.cost,
    }


def learned(space: SpaceState) -> Fields:
    """What the space has learned: which backend is used, and from how much experience."""
    return {
        "backend": {pair: choice.backend for pair, choice in space.choices.items()},
        "link samples": {link: rate.n for link, rate in space.rates.items()},
        "prefill samples": {node: cost.n for node, cost in space.prefill.items()},
        "sessions waited for": len(space.sessions.open),
    }


def node(one: NodeState) -> Fields:
    """A node without how far its record is read."""
    return {
        "status": one.status,
        "why": one.why,
        "incarnation": one.incarnation,
        "epoch": one.epoch,
        "role": one.role,
        "address": one.address,
        "blocks": one.blocks,
        "block_size": one.block_size,
        "block_bytes": one.block_bytes,
        "host_blocks": one.host_blocks,
        "backends": list(one.backends),
        "components": dict(sorted(one.components.items())),
        "warnings": list(one.warnings),
        "version": one.version,
    }


def node_words(one: NodeState) -> str:
    role = f", {one.role}" if one.role else ""
    pool = f", {one.blocks:,} blocks of {one.block_size} tokens" if one.blocks else ""
    return f"{one.status} at {one.address}{role}{pool}, incarnation {one.incarnation}"


def offer(one: OfferState) -> Fields:
    return {
        "node": one.node,
        "tier": one.tier,
        "blocks": one.count,
        "rev": one.rev,
        "ttl_ms": one.ttl_ms,
        "tail": one.tail.hex(),
        "session": one.session,
        "request": one.request,
        "why": one.why,
    }


def offer_words(one: OfferState) -> str:
    what = f"leases {one.count:,} blocks in {one.tier}" if is_lease(one) else (
        f"offers {one.count:,} blocks from its cache"
    )  # fmt: skip
    why = f" {LEASES.get(one.why, one.why)}" if one.why else ""
    request = f" of request {one.request}" if one.request else ""
    session = f", session {one.session}" if one.session else ""
    return f"{one.node} {what}{request}{why}{session}"


def transfer(one: TransferState) -> Fields:
    return {
        "phase": one.phase,
        "stage": one.stage,
        "reason": one.reason,
        "pin": one.pin,
        "backend": one.backend,
        "blocks": one.count,
        "tokens": one.tokens,
        "bytes": one.bytes,
        "request": one.request,
        "target": one.target,
        "source": one.source,
    }


def transfer_words(one: TransferState) -> str:
    end = {"open": "is still open", "done": f"moved {one.count:,} blocks in {one.total_ms:.3g} ms"}
    how = end.get(one.phase, f"failed at {one.stage or 'an unknown stage'}: {one.reason}")
    return f"{one.target} from {one.source} for request {one.request}, {how}"


def slot(one: SlotState) -> Fields:
    return {
        "http": one.node.http,
        "control": one.node.control,
        "profile": one.node.profile,
        "phase": one.phase,
        "drained": one.drained,
        "fence": one.fence,
        "holder": one.holder,
        "request": one.request,
        "last": one.last,
    }


def slot_words(one: SlotState) -> str:
    return held(one)
