"""What a source answers its peers: the pin protocol over offers and pins.

No lock and no clock in here: the export table calls it under its own lock with the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from kvferry.core.events import PinEnded
from kvferry.core.messages import HeldPin
from kvferry.node.export.grants import pack_blocks, sign_grant
from kvferry.node.export.offers import Check, Offers
from kvferry.node.export.pinbook import OpenPin, PinBook, PinKey, blocks_of
from kvferry.node.peers.wire import Abort, Done, Granted, Live, Ok, Pin, Refused, Renew, Settled

RANKS_MAX = 1024
TRANSFER_CHARS_MAX = 256
TOMBSTONES_PER_PIN = 8
ANSWERS_MAX = 64
"""Different pin messages of one transfer whose answers are kept for repetitions."""
READS_MAX = 4096
"""Reads that may wait to be taken; of more the oldest are forgotten, which only retention feels."""


class RankEndpoint(msgspec.Struct, frozen=True):
    """How one rank of this engine serves reads.

    ``key`` signs the grants that this rank's data server checks; ``backends`` holds what each
    backend says of itself, by name, and ``host_backends`` the same of those that serve the
    rank's host tier.
    """

    key: bytes
    backends: dict[str, bytes]
    host_backends: dict[str, bytes] = {}


class PinDesk:
    """Answers pin, renew, done, abort and live; collects the ends of pins in ``ended``.

    Attributes:
        ended: pins that ended and were not reported yet; whoever calls takes them out.
        check: see :attr:`kvferry.node.export.table.ExportTable.check`.
        host_first: number of the host tier's first slot; 0 without a host tier.
        reads: last chain hash and reader of each pin that was read whole, until somebody takes it.
    """

    def __init__(
        self,
        incarnation: str,
        offers: Offers,
        *,
        wall_ms: Callable[[], int],
        pins_max: int,
        pin_ms_max: int,
    ) -> None:
        self._incarnation = incarnation
        self._offers = offers
        self._wall_ms = wall_ms
        self._pin_ms_max = pin_ms_max
        self._book = PinBook(
            pins_max=pins_max,
            tombstones_max=TOMBSTONES_PER_PIN * pins_max,
            tombstone_s=pin_ms_max / 1000,
        )
        self._next_deadline_s = float("inf")
        self.ranks: tuple[RankEndpoint, ...] = ()
        self.host_first = 0
        self.paused = False
        self.check: Check | None = None
        self.ended: list[PinEnded] = []
        self.reads: deque[tuple[bytes, str]] = deque(maxlen=READS_MAX)

    @property
    def pins(self) -> int:
        return len(self._book.open)

    @property
    def tombstones(self) -> int:
        return self._book.tombstones

    def pinned_blocks(self) -> set[int]:
        return blocks_of(self._book.open.values())

    def standing(self) -> list[HeldPin]:
        """Each pin that stands."""
        return [
            HeldPin(transfer=transfer, target=target, blocks=len(pin.held))
            for (target, transfer), pin in self._book.open.items()
        ]

    def grantable(self, hashes: Sequence[bytes]) -> int:
        """How many blocks the longest prefix has that a pin would be granted now."""
        for count, chain in enumerate(hashes):
            if self._offers.find(chain, self.check) is None:
                return count
        return len(hashes)

    def sweep(self, now_s: float) -> None:
        """End overdue pins and drop old tombstones."""
        if now_s >= self._next_deadline_s:
            for pin in self._book.overdue(now_s):
                self._end(pin, "deadline", now_s)
            self._next_deadline_s = self._book.next_deadline_s()
        self._book.forget_tombstones(now_s)

    def close(self, now_s: float) -> None:
        """End every pin and grant none any more."""
        self.ranks = ()
        for pin in list(self._book.open.values()):
            self._end(pin, "close", now_s, "the node stops")

    def pin(self, target: str, frame: Pin, client: str, now_s: float) -> Granted | Refused:
        """Open a pin, or answer another message about one that stands.

        The scheduler of a target pins a whole prompt and each of its workers the part that it
        reads, under one transfer: a standing pin grows by what it does not hold yet.
        """
        key = (target, frame.transfer)
        pin = self._book.open.get(key)
        refusal = self._malformed(frame) or (self._refusal(key) if pin is None else None)
        if refusal is not None:
            return refusal
        if pin is None:
            pin = OpenPin(
                key,
                expires_ms=self._wall_ms() + self._pin_ms_max,
                opened_s=now_s,
                last_s=now_s + self._pin_ms_max / 1000,
            )
        asked = (frame.start, len(frame.hashes), frame.hashes[-1] if frame.hashes else b"")
        granted = pin.granted.get(asked) or self._grant(pin, frame)
        if granted is None:
            return self._not_held(pin)
        self._book.open[key] = pin
        self._offers.watch(True)
        if len(pin.granted) < ANSWERS_MAX:
            pin.granted[asked] = granted
        pin.holders.add(client)
        pin.ranks = max(pin.ranks, frame.ranks)
        pin.renew(now_s, frame.deadline_ms)
        self._next_deadline_s = min(self._next_deadline_s, pin.deadline_s)
        return granted

    def renew(self, target: str, frame: Renew, now_s: float) -> Ok | Refused:
        pin = self._book.open.get((target, frame.transfer))
        if pin is None:
            return Refused(reason="ended")
        pin.renew(now_s, frame.deadline_ms)
        return Ok()

    def done(self, target: str, frame: Done, now_s: float) -> Settled:
        key = (target, frame.transfer)
        pin = self._book.open.get(key)
        if pin is None:
            return Settled(transfer=frame.transfer, intact=self._late_done(key, frame, now_s))
        if not 0 <= frame.rank < pin.ranks:
            return Settled(transfer=frame.transfer, intact=False)
        if frame.rank not in pin.answers:
            pin.answers[frame.rank] = self._intact(pin)
        if len(pin.answers) == pin.ranks:
            self._end(pin, "intact" if all(pin.answers.values()) else "void", now_s)
        return Settled(transfer=frame.transfer, intact=pin.answers[frame.rank])

    def abort(self, target: str, frame: Abort, now_s: float) -> Ok:
        key = (target, frame.transfer)
        pin = self._book.open.get(key)
        if pin is not None:
            self._end(pin, "abort", now_s, frame.why)
        elif self._book.ended(key) is None:
            self._book.bury(key, "abort", now_s)
        return Ok()

    def live(self, target: str, frame: Live, client: str, now_s: float) -> Ok:
        listed = set(frame.transfers)
        for pin in list(self._book.open.values()):
            if pin.key[0] != target or pin.key[1] in listed:
                continue
            pin.holders.discard(client)
            if not pin.holders:
                self._end(pin, "close", now_s, "not live after a reconnect")
        return Ok()

    def _malformed(self, frame: Pin) -> Refused | None:
        if not 0 < len(frame.transfer) <= TRANSFER_CHARS_MAX or not 0 < frame.ranks <= RANKS_MAX:
            return Refused(reason="protocol", detail="transfer id or ranks out of range")
        if frame.incarnation and frame.incarnation != self._incarnation:
            return Refused(reason="incarnation", detail=f"{self._incarnation} lives now")
        return None

    def _refusal(self, key: PinKey) -> Refused | None:
        if self._book.ended(key) is not None:
            return Refused(reason="ended")
        if not self.ranks:
            return Refused(reason="not_ready")
        if self.paused:
            return Refused(reason="paused")
        if self._book.full:
            return Refused(reason="busy", detail=f"{self.pins} pins stand")
        return None

    def _not_held(self, pin: OpenPin) -> Refused:
        if not pin.held:
            target, transfer = pin.key
            self.ended.append(
                PinEnded(
                    transfer=transfer, target=target, granted=0, how="refused", detail="not_held"
                )
            )
        return Refused(reason="not_held")

    def _grant(self, pin: OpenPin, frame: Pin) -> Granted | None:
        """The longest prefix that the pin holds already or that is offered; None for none."""
        blocks: list[int] = []
        fresh: list[int] = []
        host = frame.host and self.host_first > 0 and all(r.host_backends for r in self.ranks)
        mark = self._offers.settled_mark()
        for chain in frame.hashes:
            block = pin.held.get(chain)
            if block is None:
                block = self._offers.find(chain, self.check, host=host)
                if block is None:
                    break
                pin.held[chain] = block
                fresh.append(block)
            blocks.append(block)
        if not blocks:
            return None
        if fresh:
            pin.marks.setdefault(mark, []).extend(fresh)
        packed = pack_blocks(blocks)
        from_host = host and max(blocks) >= self.host_first
        return Granted(
            transfer=frame.transfer,
            incarnation=self._incarnation,
            blocks=tuple(blocks),
            deadline_ms=min(max(1, frame.deadline_ms), self._pin_ms_max),
            grants=tuple(
                sign_grant(rank.key, frame.transfer, packed, pin.expires_ms) for rank in self.ranks
            ),
            backends=tuple(rank.backends for rank in self.ranks),
            host_first=self.host_first if from_host else 0,
            host_backends=tuple(r.host_backends for r in self.ranks) if from_host else (),
        )

    def _intact(self, pin: OpenPin) -> bool:
        unchanged = self._offers.unchanged_since
        if not all(unchanged(mark, blocks) for mark, blocks in pin.marks.items()):
            return False
        check = self.check
        return check is None or all(check(block) == chain for chain, block in pin.held.items())

    def _late_done(self, key: PinKey, frame: Done, now_s: float) -> bool:
        ended = self._book.ended(key)
        if ended is None:
            self._book.bury(key, "done", now_s)
            return False
        return ended.answers.get(frame.rank, False)

    def _end(self, pin: OpenPin, event: str, now_s: float, detail: str = "") -> None:
        if event == "intact":
            self.reads.append((next(reversed(pin.held)), pin.key[0]))
        self.ended.append(self._book.end(pin, event, now_s, detail))
        if not self._book.open:
            self._offers.watch(False)
