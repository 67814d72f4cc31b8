"""What the coordinator advised us to expect of sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from kvferry.core.advising import move_ms, recompute_ms, spared_ms
from kvferry.core.messages import SAVED_UNKNOWN, Advice
from kvferry.core.retention_gaps import BINS, prior
from kvferry.core.retention_keeper import keeper, shares
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.node")
T = TypeVar("T")


class AdviceView:
    """The newest advice. It stays good without a coordinator: sessions do not change with it.

    Engine threads read; the agent's thread replaces.

    Attributes:
        gaps: when sessions come back; a prior until something was heard.
        shares: how much each node with a host tier is to keep, relative to others.
        term: of the leader who advised; 0 before.
        position: how much of the ledger that leader knew.
    """

    def __init__(self, node: str = "") -> None:
        """``node`` is our own name."""
        self._node = node
        self.gaps = prior()
        self.shares: Mapping[str, int] = {}
        self.term = self.position = 0
        self._saved = SAVED_UNKNOWN
        self._pays_from: dict[str, int] = {}
        self._links: dict[str, tuple[float, float]] = {}
        self._computing: tuple[float, float] | None = None
        self._decode = msgspec.msgpack.Decoder(Advice).decode

    def saved_ms(self, tokens: int) -> float:
        """What a hit of the first ``tokens`` tokens of a prompt spares; a guess before advice."""
        return spared_ms(self._saved, tokens)

    def too_dear(self, source: str, tokens: int) -> bool:
        """Whether computing so many tokens is thought faster than moving them here from there."""
        return tokens < self._pays_from.get(source, 0)

    def predicted(self, source: str, start: int, end: int) -> tuple[float, float]:
        """Milliseconds to move tokens ``start`` to ``end`` of a prompt here from ``source``, and to
        compute them; 0 where it is not known. What else the two move is not counted."""
        link, computing = self._links.get(source), self._computing
        moving_ms = move_ms(link, end - start) if link is not None else 0.0
        computing_ms = recompute_ms(computing, start, end) if computing is not None else 0.0
        return moving_ms, computing_ms

    def kept_there(self, session: str, other: str, own_blocks: int) -> bool:
        """Whether another node that has a session's chain too is the one to keep it.

        Args:
            session: as both nodes call it; a chain without a name is kept by each that has it.
            other: that node.
            own_blocks: size of our host tier.
        """
        theirs = self.shares.get(other, 0)
        if not session or not theirs or other == self._node:
            return False
        ours = self.shares.get(self._node, own_blocks) if own_blocks else 0
        return keeper(session, {self._node: ours, other: theirs}) == other

    async def heard(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """The bus handler for :class:`Advice` messages."""
        try:
            said = self._decode(data)
        except msgspec.MsgspecError as error:
            log.warning(
                "advice on %s cannot be read, what was heard before counts: %s", subject, error
            )
            return
        if len(said.gaps.first) != BINS or len(said.gaps.later) != BINS:
            log.warning(
                "advice on %s has other bins than this version; run one version of kvferry in a "
                "space, or leave it: what was heard before counts",
                subject,
            )
            return
        if said.term < self.term:
            return  # A deposed leader that does not know it yet.
        self.gaps, self._saved, self.term = said.gaps, said.saved, said.term
        self.position = said.position
        self.shares = shares(said.host_blocks, said.roles)
        ours = f">{self._node}"
        self._pays_from = _by_source(said.pays_from, ours)
        self._links = _by_source(said.links, ours)
        self._computing = said.computing.get(self._node)


def _by_source(pairs: Mapping[str, T], ours: str) -> dict[str, T]:
    """Of what is said of pairs, that which ends at us."""
    return {pair.removesuffix(ours): said for pair, said in pairs.items() if pair.endswith(ours)}
