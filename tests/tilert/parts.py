"""What the tests of the pool share: a ledger, real nodes, a sender; and how they read its story."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.plane import Plane, Recorded, of
from tests.tilert.nodes import DecodeNode
from tests.tilert.original import OriginalSender
from tests.tilert.prefill import Prefill, injected_as
from tests.tilert.rig import Rig, by_ours, rig
from tests.tilert.standin import Send

from kvferry.core.events import SlotChanged, TurnEnded

WORDS = list(b" the ferry carries what it can")
"""What the nodes' engines say, over and over."""
BOUND_S = 60.0


@dataclass
class Parts:
    """What a test may use.

    Attributes:
        nodes: two that are alike, ``t0`` and ``t1``.
        prefill: our senders, over a cache of recorded shapes.
        sender: TileRT's own.
    """

    plane: Plane
    prefill: Prefill
    sender: OriginalSender
    tokenizer: Path
    nodes: dict[str, DecodeNode]


@asynccontextmanager
async def pool_of(
    parts: Parts, *names: str, send: Send | None = None, **options: Any
) -> AsyncIterator[Rig]:
    chosen = {name: parts.nodes[name] for name in names}
    async with rig(
        parts.plane.url, chosen, parts.tokenizer, send or by_ours(parts.prefill), **options
    ) as made:
        yield made


async def slot_story(parts: Parts, turn: str, last: str) -> list[str]:
    """What the ledger says of a turn's slots, once the last word of it is there."""

    def told(seen: list[Recorded]) -> list[str]:
        return [e.change for e in of(seen, SlotChanged, request=turn)]

    return told(await wait_for(parts, lambda seen: last in told(seen), f"{last} of {turn}"))


async def turn_ended(parts: Parts, turn: str) -> TurnEnded:
    seen = await wait_for(parts, lambda seen: of(seen, TurnEnded, request=turn), f"end of {turn}")
    return of(seen, TurnEnded, request=turn)[0]


async def wait_for(
    parts: Parts, condition: Callable[[list[Recorded]], object], what: str
) -> list[Recorded]:
    """The facts, once ``condition`` holds over them."""
    return await asyncio.to_thread(parts.plane.wait_for, condition, what, BOUND_S)


async def injected(parts: Parts, name: str, rids: set[str]) -> dict[str, int]:
    """Which block of the cache each of these requests' KV was that a node's engine was given; -1
    for what is no block of it, whole and unmixed."""
    return await asyncio.to_thread(_injected, parts, parts.nodes[name], rids)


def _injected(parts: Parts, node: DecodeNode, rids: set[str]) -> dict[str, int]:
    import torch

    cache = parts.prefill.cache
    found = {}
    for path in sorted(node.folder.glob("inject-*.pt")):
        got = torch.load(path)
        layers, tokens = got["layers"], got["seq_len"]
        if got["rid"] not in rids:
            continue
        # The rope part is exact and tells which block it can be; then all of it is compared.
        ropes = ((n, cache.expected(0, [n], tokens)[2]) for n in range(cache.blocks))
        block = next((n for n, rope in ropes if torch.equal(layers[0][2], rope)), -1)
        whole = block >= 0 and injected_as(layers, cache, [block], tokens)
        found[got["rid"]] = block if whole else -1
    return found
