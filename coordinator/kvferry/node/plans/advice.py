"""What the coordinator advised us to expect of sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from kvferry.core.advising import Rest, spared_ms, weigh_rest
from kvferry.core.messages import SAVED_UNKNOWN, Advice
from kvferry.core.retention_gaps import BINS, prior
from kvferry.core.retention_keeper import keeper, shares
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.node")
T = TypeVar("T")


class _Costs(NamedTuple):
    """What one advice said of moving and computing, replaced as a whole."""

    position: int = 0
    weighs: bool = False
    links: Mapping[str, tuple[float, float]] = {}
    computing: tuple[float, float] | None = None


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
        self._costs = _Costs()
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
        rest = _weighed(self._costs, source, start, end)
        return rest.move_ms, rest.recompute_ms

    def rest(self, source: str, start: int, end: int) -> tuple[Rest, int] | None:
        """Whether tokens ``start`` to ``end`` of a prompt are worth moving here from ``source``
        where those before them are here, and how much of the ledger was known to who advised so;
        None where nobody wants it weighed."""
        costs = self._costs
        return (_weighed(costs, source, start, end), costs.position) if costs.weighs else None

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
        self._costs = _Costs(
            said.position,
            said.weighs,
            _by_source(said.links, ours),
            said.computing.get(self._node),
        )


def _by_source(pairs: Mapping[str, T], ours: str) -> dict[str, T]:
    """Of what is said of pairs, that which ends at us."""
    return {pair.removesuffix(ours): said for pair, said in pairs.items() if pair.endswith(ours)}


def _weighed(costs: _Costs, source: str, start: int, end: int) -> Rest:
    return weigh_rest(costs.links.get(source), costs.computing, start, end)
