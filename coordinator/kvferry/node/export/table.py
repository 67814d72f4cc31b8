"""The export table: what this node offers to peers and which pins stand.

The engine's scheduler thread offers blocks and reports their reuse; peer sessions pin them. The
engine's cache keeps the right to take an offered block back at any time: reading is optimistic,
and ``done`` is answered ``intact`` only if no block of the pin changed since it was granted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvferry.core.events import PinEnded
from kvferry.core.messages import HeldPin
from kvferry.node.export.desk import PinDesk, RankEndpoint
from kvferry.node.export.offers import Check, Offers
from kvferry.node.export.published import Published
from kvferry.node.peers.wire import Abort, Done, Granted, Live, Ok, Pin, Refused, Renew, Settled

__all__ = ["ExportTable", "RankEndpoint"]

log = logging.getLogger("kvferry.export")

GONE_MAX = 262_144
"""Hashes that :meth:`ExportTable.take_reused` can have waiting."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ExportTable:
    """Offers and pins of one engine core, under one lock.

    ``target`` is always the authenticated name of the asking node; ``client`` tells the
    processes of that node apart (its scheduler and its workers have a session each).
    Messages may be repeated: a repetition gets the same answer. Every pin is reported to
    ``on_pin_ended`` exactly once, outside the lock, and so is each refusal ``not_held``.

    Attributes:
        published: prefills under way whose written blocks are offered here one after the other.
    """

    def __init__(
        self,
        incarnation: str,
        *,
        on_pin_ended: Callable[[PinEnded], None],
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = _wall_ms,
        pins_max: int = 1024,
        pin_ms_max: int = 60_000,
    ) -> None:
        self._on_pin_ended = on_pin_ended
        self._clock = clock
        self._lock = threading.Lock()
        self.published = Published()
        self._offers = Offers(gone_max=GONE_MAX)
        self._desk = PinDesk(
            incarnation, self._offers, wall_ms=wall_ms, pins_max=pins_max, pin_ms_max=pin_ms_max
        )

    # --- the engine's side ------------------------------------------------------------------

    @property
    def check(self) -> Check | None:
        """A second opinion, or None: the engine's present hash of a block.

        Pin and done compare it with the hash that the block was offered under. It is called on
        the threads of peer sessions, so it must only read.
        """
        return self._desk.check

    @check.setter
    def check(self, check: Check | None) -> None:
        self._desk.check = check

    def set_ranks(self, ranks: Sequence[RankEndpoint]) -> None:
        """The ranks can serve from now on; before that every pin is refused ``not_ready``."""
        with self._lock:
            self._desk.ranks = tuple(ranks)

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Block ``blocks[i]`` holds the KV of chain hash ``hashes[i]``, surely written.

        A hash that another block offers already is granted from that one while it stands. A
        block that was offered under another hash has changed: its offer and pins are void.

        Raises:
            ValueError: the two are not equally long.
        """
        with self._lock:
            self._offers.offer(hashes, blocks)

    def prefer(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Of blocks with the same hash grant these: they are leased. All are offered."""
        with self._lock:
            self._offers.prefer(hashes, blocks)

    def offer_host(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """The same for slots of the host tier, which the node counts on from its engine's blocks.

        A reader gets the engine's block of a hash as long as that is offered too.

        Raises:
            ValueError: the two are not equally long.
        """
        with self._lock:
            self._offers.offer_host(hashes, blocks)

    def set_host(self, engine_blocks: int) -> None:
        """This node has a host tier, whose slots it counts from ``engine_blocks`` on."""
        with self._lock:
            self._desk.host_first = engine_blocks

    def reused(self, block: int) -> None:
        """The engine hands the block out again: its offer and the pins on it are void.

        Takes no lock and costs well below a microsecond; at once visible to every operation.
        """
        if self._offers.reused(block):
            with self._lock:
                self._offers.settle()

    def withdraw(self, hashes: Sequence[bytes]) -> None:
        """Offer these no longer. Their blocks are as they were, so standing pins stay good."""
        with self._lock:
            self._offers.withdraw(hashes)

    def clear(self) -> None:
        """The cache was reset or the weights changed: no offer stands, every pin is void."""
        with self._lock:
            self._offers.clear()

    def pause(self, paused: bool) -> None:
        """While paused, new pins are refused; standing ones go on."""
        with self._lock:
            self._desk.paused = paused
        self.published.pause(paused)

    def held(self, hashes: Sequence[bytes]) -> int:
        """How many blocks the longest offered prefix of ``hashes`` has."""
        with self._lock:
            return self._offers.held(hashes)

    def lent(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of ``hashes`` a pin would be granted now from the engine's cache, each
        compared with what the engine's pool holds (:attr:`check`)."""
        with self._lock:
            self._offers.settle()
            return self._desk.grantable(hashes)

    def standing_pins(self) -> list[HeldPin]:
        """Each pin that stands."""
        with self._operation():
            return self._desk.standing()

    def offered(self) -> int:
        """How many blocks are offered."""
        with self._lock:
            return len(self._offers)

    def take_reused(self) -> list[bytes]:
        """Hashes that are no longer offered because their blocks changed, oldest first.

        Each is given once. At most ``GONE_MAX`` wait; beyond that the oldest are dropped and
        counted by :meth:`reused_lost`.
        """
        with self._lock:
            return self._offers.take_gone()

    def reused_lost(self) -> int:
        """How many hashes :meth:`take_reused` never gave because nobody took them in time."""
        with self._lock:
            return self._offers.gone_lost

    def take_reads(self) -> list[tuple[bytes, str]]:
        """Runs that another node has read whole since the last call: last chain hash, that node.

        Takes no lock.
        """
        reads = self._desk.reads
        # Only the caller takes, so it cannot run empty in between.
        return [reads.popleft() for _ in range(len(reads))]

    def pinned_blocks(self) -> set[int]:
        """The blocks that a standing pin covers."""
        with self._operation():
            return self._desk.pinned_blocks()

    def pins(self) -> int:
        """How many pins stand."""
        with self._operation():
            return self._desk.pins

    def tombstones(self) -> int:
        """How many ended transfers are remembered."""
        with self._operation():
            return self._desk.tombstones

    def sweep(self) -> None:
        """End the pins whose deadline has passed; every operation does this first."""
        with self._operation():
            return

    def close(self) -> None:
        """The node stops: every standing pin ends, and new ones are refused ``not_ready``."""
        self.published.close()
        with self._operation() as now_s:
            self._desk.close(now_s)

    # --- the peers' side --------------------------------------------------------------------

    def pin(self, target: str, frame: Pin, *, client: str = "") -> Granted | Refused:
        """Grant the longest offered prefix of the frame's hashes, for a time.

        A repeated message gets the same answer and keeps the pin as a renewal would; whether the
        blocks are still what they were is said by ``done``. A message about other blocks of the
        same transfer gets a grant for these, and ``done`` then answers for all.
        """
        with self._operation() as now_s:
            return self._desk.pin(target, frame, client, now_s)

    def renew(self, target: str, frame: Renew) -> Ok | Refused:
        """Keep a pin longer, up to ``pin_ms_max`` after it was granted."""
        with self._operation() as now_s:
            return self._desk.renew(target, frame, now_s)

    def done(self, target: str, frame: Done) -> Settled:
        """Are the blocks still what the pin promised, now that this rank has read them?

        The pin ends with the answer to its last rank.
        """
        with self._operation() as now_s:
            return self._desk.done(target, frame, now_s)

    def abort(self, target: str, frame: Abort) -> Ok:
        """The target gives up; of an unknown transfer a tombstone remains."""
        with self._operation() as now_s:
            return self._desk.abort(target, frame, now_s)

    def live(self, target: str, frame: Live, *, client: str = "") -> Ok:
        """After a reconnect: the client still works on these transfers and on no others.

        A pin ends when no client of its target holds it any more.
        """
        with self._operation() as now_s:
            return self._desk.live(target, frame, client, now_s)

    @contextmanager
    def _operation(self) -> Iterator[float]:
        """The lock, with reuses taken in and overdue pins ended; reports ends after it."""
        ended: list[PinEnded] = []
        try:
            with self._lock:
                now_s = self._clock()
                self._offers.settle()
                self._desk.sweep(now_s)
                yield now_s
                ended, self._desk.ended = self._desk.ended, ended
        finally:
            for event in ended:
                self._report(event)

    def _report(self, event: PinEnded) -> None:
        try:
            self._on_pin_ended(event)
        except Exception:
            # The pin has ended whatever the listener does; its peer still gets its answer.
            log.exception("the listener failed on the end of pin %s", event.transfer)
