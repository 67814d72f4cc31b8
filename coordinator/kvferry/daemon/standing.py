"""Which coordinator should lead: who was heard, and whose turn it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from kvferry.core.messages import Announce
from kvferry.errors import KVFerryError
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.daemon")

OTHERS_MAX = 64
_ANNOUNCES = msgspec.msgpack.Decoder(Announce)


class NotLeader(KVFerryError):
    """Another coordinator decides, or nobody may yet.

    Attributes:
        leader: its name; empty while it is not settled.
    """

    def __init__(self, leader: str) -> None:
        super().__init__(
            f"coordinator {leader} leads" if leader else "no coordinator leads yet; ask again"
        )
        self.leader = leader


class Standing:
    """This replica among the others.

    Only a wish: what fences is the order of the coord subject in the ledger. Standing keeps
    healthy replicas from taking it from each other in turns.
    """

    def __init__(
        self,
        replica: str,
        takeover_after_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replica = replica
        self.leading = False
        self._takeover_after_s = takeover_after_s
        self._clock = clock
        self._listening_since = clock()
        self._could_hear_at = clock()
        self._others: dict[str, tuple[Announce, float]] = {}

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One announcement from the bus."""
        try:
            self.heard(_ANNOUNCES.decode(data))
        except msgspec.DecodeError as error:
            log.warning("an announcement cannot be read: %s", error)

    def heard(self, announce: Announce) -> None:
        """Another replica is alive, or it was our own echo."""
        if announce.replica == self.replica:
            return
        self._others.pop(announce.replica, None)
        self._others[announce.replica] = (announce, self._clock())
        if len(self._others) > OTHERS_MAX:
            del self._others[next(iter(self._others))]

    def restart(self) -> None:
        """Nothing could be heard for a while: listen for a full period again before taking over."""
        self._listening_since = self._clock()

    def note(self, connected: bool, term: int) -> None:
        """Say several times a second whether others can be heard now, and our highest term.

        Who hears of a higher one stands down, whatever else waits for the ledger. Who could not
        hear others for the takeover time, because it was cut off or its process was stopped, has
        been replaced for all it knows: it stands down and listens first.
        """
        now = self._clock()
        deaf = now - self._could_hear_at >= self._takeover_after_s
        if deaf or not connected:
            self._listening_since = now
        if deaf and self.leading:
            log.warning("%s could hear no other coordinator; standing by", self.replica)
            self.leading = False
        if connected:
            self._could_hear_at = now
        self._yield(term)

    def others(self) -> list[Announce]:
        """Replicas that were heard within the takeover time."""
        since = self._clock() - self._takeover_after_s
        return [announce for announce, at in self._others.values() if at >= since]

    def rival(self) -> Announce | None:
        """The other replica that leads by right of the highest term, if one is alive."""
        leaders = [one for one in self.others() if one.leader]
        return max(leaders, key=_rank, default=None)

    def update(self, term: int, *, fresh: bool) -> bool:
        """Look again whether this replica should lead; called each tick.

        Args:
            term: the highest term that this replica holds in any space.
            fresh: no space has had a leader yet, so nobody has to be waited for.
        """
        if self.leading:
            self._yield(term)
        elif self.rival() is None and (fresh or self.listened()):
            log.info("no other coordinator leads; %s takes over", self.replica)
            self.leading = True
        return self.leading

    def _yield(self, term: int) -> None:
        rival = self.rival()
        if self.leading and rival is not None and _rank(rival) > (term, self.replica):
            log.info("coordinator %s leads with term %d; standing by", rival.replica, rival.term)
            self.leading = False

    def listened(self) -> bool:
        """Whether silence has lasted long enough to mean something."""
        return self._clock() - self._listening_since >= self._takeover_after_s

    def may_take(self, holder: str) -> bool:
        """Whether a space that ``holder`` leads may be taken from it."""
        if not self.leading:
            return False
        if holder in ("", self.replica):
            return True
        announce, at = self._others.get(holder, (None, 0.0))
        if announce is not None and self._clock() - at < self._takeover_after_s:
            return not announce.leader
        return self.listened()


def _rank(announce: Announce) -> tuple[int, str]:
    return (announce.term, announce.replica)
