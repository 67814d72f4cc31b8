"""What a state says of leases and of the sessions that they are for."""

from __future__ import annotations

from typing import Any

from kvferry.core.kept import kept
from kvferry.core.leases import is_lease
from kvferry.core.retention_gaps import NEVER_S, GapModel, learned
from kvferry.core.state import NodeState, SpaceState

Document = dict[str, Any]

UNNAMED = "unnamed"
"""What leases of older versions are for."""
WITHIN_S = (10.0, 60.0, 600.0)


def leases(space: SpaceState) -> Document:
    """The leases by tier and by what they are for; shared blocks count once for each."""
    found: Document = {}
    for offer in space.offers.values():
        if is_lease(offer):
            by_why = found.setdefault(offer.tier, {})
            held = by_why.setdefault(offer.why or UNNAMED, {"leases": 0, "blocks": 0})
            held["leases"] += 1
            held["blocks"] += offer.count - offer.base
    return {tier: dict(sorted(by_why.items())) for tier, by_why in sorted(found.items())}


def keeps(space: SpaceState, node: NodeState) -> Document:
    """How a node keeps under what is set; ``set`` names the settings that an operator has set."""
    settings = space.retention_of(node.name)
    now = kept(node, settings)
    return {
        "lease_ms": now.rules.lease_ms if now.lease_blocks else 0,
        "lease_blocks": now.lease_blocks,
        "watermark_blocks": now.watermark_blocks,
        "retain_max_ms": now.rules.retain_max_ms,
        "host_blocks": now.host_blocks,
        "said": node.lease_blocks >= 0,
        "set": sorted(settings.given()),
    }


def sessions(space: SpaceState) -> Document:
    """When sessions come back, as far as the ledger has taught, as of its last turn."""
    gaps = space.sessions
    now_ms = max((one.ended_ms for one in gaps.open.values()), default=0)
    model = learned(gaps, now_ms)
    return {
        "waited_for": len(gaps.open),
        "gaps": model.samples,
        "after_first_turn": _habits(model, 1, gaps.first.total),
        "after_later_turns": _habits(model, 2, gaps.later.total),
    }


def _habits(model: GapModel, turns: int, observed: int) -> Document:
    return {
        "observed": observed,
        "returns": 1.0 - model.stays_away(NEVER_S, turns),
        "median_s": model.median_s(turns),
        "returns_within_s": {
            f"{limit:g}": 1.0 - model.stays_away(limit, turns) for limit in WITHIN_S
        },
    }
