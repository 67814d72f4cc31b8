"""Tells the nodes of each space what is held there, so that most of them need not ask."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from kvferry.core.applied import Applied
from kvferry.core.events import Evicted, NodeJoined
from kvferry.core.held import BITS_EACH, BITS_MAX, HeldFilter
from kvferry.core.messages import Held, encode, held_subject
from kvferry.daemon.projector import Projector
from kvferry.errors import LedgerError
from kvferry.ids import pack_short, unpack_short
from kvferry.index.spaces import ResidencyIndex
from kvferry.ports.log import BusPort

log = logging.getLogger("kvferry.daemon")

QUIET_S = 0.5
"""A space hears something at least so often; its nodes trust what they have a little longer."""
PACE_S = 0.1
"""Between two messages to a space: each interrupts every one of its engines for a moment."""
REBUILD_S = 10.0
"""What is held no more is taken out this often at most."""
WHOLE_S = 30.0
"""A space hears the whole so often in any case, for nodes that missed a number."""
SLICE = 2_000
"""Hashes that a rebuild adds before plans get their turn again."""
ADDED_MAX = 8_192
"""New hashes in one message, 64 KiB."""
SAMPLES_MAX = 4 * BITS_MAX // BITS_EACH
"""A space that holds more than these 1,048,576 hashes (8 million blocks of 16 tokens) is told
nothing, so that its nodes ask for every plan: the set would say a wrong yes to one question in six
and ever more, and to build it again would take the leader a second out of ten."""


class _Space:
    """What one space was told."""

    def __init__(self) -> None:
        self.filter = HeldFilter.for_count(0)
        self.count = 0
        self.series = ""
        self.number = 0
        self.position = 0
        """Stream sequence up to which everything was told."""
        self.fresh: list[int] = []
        self.whole_due = True
        self.ended = True
        self.sent_s = float("-inf")
        self.whole_s = float("-inf")
        self.rebuilt_s = float("-inf")
        self.coming: HeldFilter | None = None
        """The next filter while it is being built: it must not miss what comes meanwhile."""

    def add(self, hashes: tuple[int, ...]) -> None:
        """Hashes that nobody held a moment ago."""
        known = self.filter
        news = [one for one in hashes if not known.might_hold(one)]
        for one in news:
            known.add(one)
        if self.coming is not None:
            for one in hashes:
                self.coming.add(one)
        self.fresh += news
        self.count += len(news)


class HeldTeller:
    """Follows the fold while this replica leads; forgets everything while it does not."""

    def __init__(
        self,
        replica: str,
        projector: Projector,
        bus: BusPort,
        *,
        leads: Callable[[str], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``leads`` gives the term that this replica holds in a space, 0 for none."""
        self._replica = replica
        self._projector = projector
        self._bus = bus
        self._leads = leads
        self._clock = clock
        self._spaces: dict[str, _Space] = {}
        self._indexed: ResidencyIndex | None = None
        self._news = asyncio.Event()
        projector.observe(self._follow)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(QUIET_S / 2):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            await self.tell()
            await asyncio.sleep(PACE_S)

    async def tell(self) -> None:
        """Send each space what it has to hear now."""
        state = self._projector.state
        if self._indexed is not self._projector.index:
            # Another ledger, or the index was built anew: what it added meanwhile is not known.
            self._spaces.clear()
            self._indexed = self._projector.index
        if not self._projector.loaded or not self._bus.connected():
            return
        for name in list(state.spaces):
            term = self._leads(name)
            if not term:
                self._spaces.pop(name, None)
                continue
            samples = self._projector.index.space(name).samples()
            if samples > SAMPLES_MAX:
                if self._spaces.pop(name, None) is not None:
                    log.warning(
                        "space %s holds %d sampled hashes, more than its nodes can be told of "
                        "(%d): they ask for every plan from now on",
                        name,
                        samples,
                        SAMPLES_MAX,
                    )
                continue
            space = self._spaces.get(name)
            if space is None:
                space = self._spaces[name] = _Space()
            try:
                await self._tell_one(name, space, term)
            except LedgerError as error:
                space.whole_due = True  # Whoever missed a number starts again with the whole.
                log.info("nodes of %s were not told what is held: %s", name, error)

    def _follow(self, applied: list[Applied]) -> None:
        """The projector's observer."""
        state = self._projector.state
        for one in applied:
            space = self._spaces.get(one.space)
            if space is None:
                continue
            if isinstance(one.entry.event, NodeJoined):
                space.whole_due = True
                self._news.set()
            if isinstance(one.entry.event, Evicted):
                space.ended = True
            known = state.spaces[one.space].offers
            if not all(offer_id in known for offer_id in one.offers):
                space.ended = True
        for name, news in self._projector.index.fresh.items():
            space = self._spaces.get(name)
            if space is not None:
                for hashes in news:
                    space.add(unpack_short(hashes))
                self._news.set()

    async def _tell_one(self, name: str, space: _Space, term: int) -> None:
        now_s = self._clock()
        crowded = space.count > space.filter.room
        if crowded or (space.ended and now_s - space.rebuilt_s >= REBUILD_S):
            await self._rebuild(name, space)
        if space.whole_due or now_s - space.whole_s >= WHOLE_S:
            space.whole_due = False
            space.whole_s = now_s
            space.series, space.number = secrets.token_hex(8), 0
            space.fresh.clear()
            await self._send(name, space, term, bits=space.filter.pack())
        while space.fresh:
            added, space.fresh = space.fresh[:ADDED_MAX], space.fresh[ADDED_MAX:]
            space.number += 1
            await self._send(name, space, term, added=pack_short(added))
        if now_s - space.sent_s >= QUIET_S:
            await self._send(name, space, term)

    async def _rebuild(self, name: str, space: _Space) -> None:
        """A filter of what is held now, in slices; what is offered meanwhile goes into both."""
        space.ended = False
        residency = self._projector.index.space(name)
        held = residency.samples()
        fresh = space.coming = HeldFilter.for_count(held)
        added = 0
        for stretch in residency.stretches():
            hashes = unpack_short(stretch)
            for one in hashes:
                fresh.add(one)
            added += len(hashes)
            if added >= SLICE:
                added = 0
                await asyncio.sleep(0)
        space.filter, space.coming, space.count = fresh, None, held
        space.rebuilt_s = self._clock()
        space.whole_due = True

    async def _send(
        self, name: str, space: _Space, term: int, *, bits: bytes = b"", added: bytes = b""
    ) -> None:
        if not space.fresh:
            space.position = self._projector.state.position
        message = Held(
            replica=self._replica,
            term=term,
            series=space.series,
            number=space.number,
            position=space.position,
            bits=bits,
            added=added,
        )
        await self._bus.publish(held_subject(name), encode(message))
        space.sent_s = self._clock()
