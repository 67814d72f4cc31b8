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
from tests.tilert.rig import Rig, by_original, rig
from tests.tilert.standin import Send

from kvferry.core.events import SlotChanged, TurnEnded

WORDS = list(b" the ferry carries what it can")
"""What the nodes' engines say, over and over."""
BOUND_S = 60.0


@dataclass
class Parts:
    """``nodes``: two that are alike, ``t0`` and ``t1``."""

    plane: Plane
    sender: OriginalSender
    tokenizer: Path
    nodes: dict[str, DecodeNode]


@asynccontextmanager
async def pool_of(
    parts: Parts, *names: str, send: Send | None = None, **options: Any
) -> AsyncIterator[Rig]:
    chosen = {name: parts.nodes[name] for name in names}
    async with rig(
        parts.plane.url, chosen, parts.tokenizer, send or by_original(parts.sender), **options
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


def injected(node: DecodeNode) -> list[tuple[str, float]]:
    """Every rid that the engine was given, and the value of the KV that came with it."""
    import torch

    found = []
    for path in sorted(node.folder.glob("inject-*.pt"), key=lambda p: int(p.stem[7:])):
        got = torch.load(path)
        values = {float(v) for layer in got["layers"] for v in layer[2].float().unique()}
        assert len(values) == 1, "KV of two requests in one"
        found.append((got["rid"], values.pop()))
    return found
