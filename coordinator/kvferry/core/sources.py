"""What the state knows of a node as a source for another."""

from __future__ import annotations

from kvferry.core.cost import link_cost, pair_key
from kvferry.core.placement import Source
from kvferry.core.state import NodeState, SpaceState


def source_for(
    space: SpaceState,
    target: NodeState,
    node: NodeState,
    *,
    blocks: int,
    tier: str = "cache",
    queue_ms: float = 0.0,
) -> Source:
    """``node`` as a source of the first ``blocks`` blocks of a prompt for ``target``."""
    pair = pair_key(node.name, target.name)
    choice, past = space.choices.get(pair), space.trials.get(pair)
    return Source(
        node=node.name,
        blocks=blocks,
        block_bytes=node.block_bytes,
        tier=tier,
        link=link_cost(
            space.rates,
            node.name,
            target.name,
            tuple(name for name in target.backends if name in node.backends),
            choice.backend if choice is not None else "",
        ),
        queue_ms=queue_ms,
        moving=past.moving if past is not None else None,
        credit_ms=past.credit_ms if past is not None else 0.0,
    )
