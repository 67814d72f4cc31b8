"""What a ledger tells of its links, and of the size of KV."""

from __future__ import annotations

from kvferry.core.events import LinkProbed, Requested, Transferred
from kvferry.replay.advise.peaks import LINKS_MAX, Load, Loads
from kvferry.replay.advise.report import Link
from kvferry.replay.advise.spread import Values
from kvferry.replay.advise.turns import OBSERVE

RATE_BYTES_MIN = 1_000_000
"""Smaller transfers tell of latency, not of a link's rate."""
VALUES_PER_LINK_MAX = 500
PROBE, TRANSFERS = "probe", "transfers"
NODES_MAX = 10_000


class Rates:
    """What links carried and can carry, learned event by event.

    Attributes:
        moved: transfers that arrived.
        bytes: over links; what came from a node's own host tier crossed none.
    """

    def __init__(self) -> None:
        self._loads = Loads()
        self._probed: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], Values] = {}
        self._blocks: dict[tuple[str, str], tuple[int, int]] = {}
        """Of a node's blocks: tokens and bytes."""
        self.moved = 0
        self.bytes = 0

    def joined(self, space: str, node: str, block_tokens: int, block_bytes: int) -> None:
        """How large a node's blocks are."""
        if block_tokens and len(self._blocks) < NODES_MAX:
            self._blocks[space, node] = (block_tokens, block_bytes)

    def block_tokens(self, space: str, node: str) -> int:
        """Tokens of a block of the node; 0 where the ledger does not tell."""
        return self._blocks.get((space, node), (0, 0))[0]

    def would_pull(self, space: str, node: str, event: Requested) -> int | None:
        """Bytes that a node that only observes would have pulled; None where it would not have, or
        where the ledger does not tell how large its blocks are."""
        tokens, size = self._blocks.get((space, node), (0, 0))
        if event.miss != OBSERVE or not tokens or not event.source:
            return None
        return max(0, event.granted - event.local_tokens // tokens) * size

    def observed(self, space: str, node: str, event: Requested, at_ms: int) -> None:
        """What a node that only observes would have pulled counts as carried by its link."""
        size = self.would_pull(space, node, event)
        if size is not None:
            self.bytes += size
            self._loads.add(event.source, node, at_ms / 1_000.0, size)

    def probed(self, node: str, event: LinkProbed) -> None:
        """A link was measured; the backend in use counts, or the best until one is."""
        if event.gb_per_s <= 0 or len(self._probed) >= LINKS_MAX:
            return
        link = (event.peer, node)
        rate = event.gb_per_s * 1e9
        self._probed[link] = rate if event.why else max(rate, self._probed.get(link, 0.0))

    def arrived(self, node: str, event: Transferred, at_ms: int) -> None:
        """A transfer arrived at ``node``."""
        self.moved += 1
        if event.source == node:
            return
        self.bytes += event.bytes
        self._loads.add(event.source, node, at_ms / 1_000.0, event.bytes)
        if event.bytes >= RATE_BYTES_MIN and event.read_ms > 0 and len(self._seen) < LINKS_MAX:
            seen = self._seen.setdefault((event.source, node), Values(VALUES_PER_LINK_MAX))
            seen.add(event.bytes / (event.read_ms / 1_000.0))

    def carries(self, source: str, target: str) -> tuple[float, str]:
        """Bytes a second that a link carries, and how that is known; 0 where it is not."""
        link = (source, target)
        if self._probed.get(link):
            return self._probed[link], PROBE
        if link in self._seen:
            return self._seen[link].at(0.9), TRANSFERS
        return 0.0, ""

    def links(self) -> tuple[Link, ...]:
        """The busiest first."""
        return tuple(self._link(link, load) for link, load in self._loads.busiest())

    def _link(self, link: tuple[str, str], load: Load) -> Link:
        rate, how = self.carries(*link)
        return Link(
            source=link[0],
            target=link[1],
            moves=load.moves,
            bytes=load.bytes,
            peak_bytes_s=load.peak_bytes_s,
            rate_bytes_s=rate,
            measured=how,
        )
