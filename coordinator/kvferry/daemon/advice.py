"""Tells the nodes of each space what the ledger taught about its sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kvferry.core.advising import LINKS_MAX, computing, pair_link, pair_pays_from, saved
from kvferry.core.applied import Applied
from kvferry.core.events import NodeJoined
from kvferry.core.messages import Advice, advice_subject, encode
from kvferry.core.retention_gaps import learned
from kvferry.core.state import JOINED, SpaceState
from kvferry.daemon.projector import Projector
from kvferry.errors import LedgerError
from kvferry.ids import ROUTER_SPACE
from kvferry.ports.log import BusPort

log = logging.getLogger("kvferry.daemon")

SLICE = 64
"""Pairs that are looked at before plans get their turn again."""
EVERY_S = 10.0
"""Between two messages to a space: habits change slowly, and each interrupts every engine."""
JOINED_S = 0.5
"""A node that joined is advised after so long: by then it listens."""


class AdviceTeller:
    """Advises while this replica leads. A node that misses a message has the one before it."""

    def __init__(
        self,
        replica: str,
        projector: Projector,
        bus: BusPort,
        *,
        leads: Callable[[str], int],
        weigh: bool = True,
    ) -> None:
        """``leads`` gives the term that this replica holds in a space, 0 for none; ``weigh`` says
        whether anything is called too dear where the space's leader does not say."""
        self._weigh = weigh
        self._replica = replica
        self._projector = projector
        self._bus = bus
        self._leads = leads
        self._joined = asyncio.Event()
        projector.observe(self._follow)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tell()
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._joined.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(JOINED_S)
            self._joined.clear()

    async def tell(self) -> None:
        """Send each space that this replica leads what its sessions are like."""
        state = self._projector.state
        if not self._projector.loaded or not self._bus.connected():
            return
        for name, space in list(state.spaces.items()):
            term = self._leads(name)
            if not term or name == ROUTER_SPACE:
                continue
            position = state.position  # What follows gives way to others, who fold on.
            pays_from, links = await pairs(space)
            weighs = space.weighs(self._weigh)
            hosting = [n for n in space.nodes.values() if n.host_blocks and n.status == JOINED]
            advice = Advice(
                replica=self._replica,
                term=term,
                gaps=learned(space.sessions, time.time_ns() // 1_000_000),
                saved=saved(space.prefill.values()),
                pays_from=pays_from if weighs else {},
                host_blocks={node.name: node.host_blocks for node in hosting},
                roles={node.name: node.role for node in hosting if node.role},
                position=position,
                links=links,
                computing=computing(space.prefill),
                weighs=weighs,
            )
            try:
                await self._bus.publish(advice_subject(name), encode(advice))
            except LedgerError as error:
                log.info("nodes of %s got no advice: %s", name, error)

    def _follow(self, applied: list[Applied]) -> None:
        """The projector's observer."""
        if any(isinstance(one.entry.event, NodeJoined) for one in applied):
            self._joined.set()


async def pairs(space: SpaceState) -> tuple[dict[str, int], dict[str, tuple[float, float]]]:
    """What :attr:`Advice.pays_from` says, where pairs whose shortest prefixes pay are left out, and
    :attr:`Advice.links`."""
    pays_from: dict[str, int] = {}
    links: dict[str, tuple[float, float]] = {}
    known = dict.fromkeys(key.rpartition("/")[0] for key in list(space.rates))
    for looked, pair in enumerate(known, 1):
        if looked % SLICE == 0:
            await asyncio.sleep(0)
        tokens = pair_pays_from(space, pair)
        if tokens:
            pays_from[pair] = tokens
        link = pair_link(space, pair) if len(links) < LINKS_MAX else None
        if link is not None:
            links[pair] = link
    return pays_from, links
