"""Which pins stand and how the ended ones ended. No lock, no clock: the export table has both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvferry.core.events import PinEnded
from kvferry.core.transfer import PIN_HOW, PIN_TABLE, UNKNOWN, step
from kvferry.node.peers.wire import Granted

PinKey = tuple[str, str]
"""(target, transfer): a node can name only its own pins."""

Pinned = tuple[int, int, bytes]
"""What a pin message asked for: start, count and last chain hash, which commits to the others."""


class OpenPin:
    """A reader's claim on granted blocks.

    Attributes:
        marks: the table's count of changes when blocks were granted, to these blocks; a block
            that changed after its own grant makes the pin void. One that changed before was
            offered anew since, as those of a prefill that goes on while it is read.
        expires_ms: end of every grant of this pin, Unix; no renewal reaches beyond it.
        last_s: the same moment on the table's clock.
        held: chain hash to block, of every block granted so far.
        granted: what each pin message was answered, so that a repetition gets the same.
        answers: what each target rank that said done was told.
        holders: the peer clients that asked for it (a scheduler and its workers ask each).
    """

    __slots__ = (
        "answers",
        "deadline_s",
        "expires_ms",
        "granted",
        "held",
        "holders",
        "key",
        "last_s",
        "marks",
        "opened_s",
        "phase",
        "ranks",
    )

    def __init__(self, key: PinKey, *, expires_ms: int, opened_s: float, last_s: float) -> None:
        self.key = key
        self.phase = step(PIN_TABLE, UNKNOWN, "pin")
        self.marks: dict[int, list[int]] = {}
        self.expires_ms = expires_ms
        self.opened_s = opened_s
        self.deadline_s = opened_s
        self.last_s = last_s
        self.ranks = 1
        self.held: dict[bytes, int] = {}
        self.granted: dict[Pinned, Granted] = {}
        self.answers: dict[int, bool] = {}
        self.holders: set[str] = set()

    def renew(self, now_s: float, deadline_ms: int) -> None:
        """Keep the pin for ``deadline_ms`` from now, within its last moment; never shorten it."""
        self.phase = step(PIN_TABLE, self.phase, "renew")
        wanted_s = min(now_s + max(1, deadline_ms) / 1000, self.last_s)
        self.deadline_s = max(self.deadline_s, wanted_s)


class EndedPin:
    """A tombstone: what late messages about a transfer are told until ``until_s``."""

    __slots__ = ("answers", "phase", "until_s")

    def __init__(self, phase: str, answers: dict[int, bool], until_s: float) -> None:
        self.phase = phase
        self.answers = answers
        self.until_s = until_s


class PinBook:
    """Open pins and tombstones, both bounded.

    Tombstones end at their deadline, the oldest first when there are more than
    ``tombstones_max``.
    """

    def __init__(self, *, pins_max: int, tombstones_max: int, tombstone_s: float) -> None:
        self.open: dict[PinKey, OpenPin] = {}
        self._ended: OrderedDict[PinKey, EndedPin] = OrderedDict()
        self._pins_max = pins_max
        self._tombstones_max = tombstones_max
        self._tombstone_s = tombstone_s

    @property
    def full(self) -> bool:
        return len(self.open) >= self._pins_max

    @property
    def tombstones(self) -> int:
        return len(self._ended)

    def ended(self, key: PinKey) -> EndedPin | None:
        return self._ended.get(key)

    def bury(self, key: PinKey, message: str, now_s: float) -> None:
        """Remember that an unknown transfer is over (``message`` is ``done`` or ``abort``)."""
        self._bury(key, step(PIN_TABLE, UNKNOWN, message), {}, now_s)

    def end(self, pin: OpenPin, event: str, now_s: float, detail: str = "") -> PinEnded:
        """Close an open pin: the one place where a pin ends.

        ``event`` is ``intact``, ``void``, ``abort``, ``deadline`` or ``close``.
        """
        pin.phase = step(PIN_TABLE, pin.phase, event)
        del self.open[pin.key]
        self._bury(pin.key, pin.phase, pin.answers, now_s)
        target, transfer = pin.key
        return PinEnded(
            transfer=transfer,
            target=target,
            granted=len(pin.held),
            how=PIN_HOW[pin.phase],
            held_ms=(now_s - pin.opened_s) * 1000,
            detail=detail,
        )

    def _bury(self, key: PinKey, phase: str, answers: dict[int, bool], now_s: float) -> None:
        self._ended.pop(key, None)
        self._ended[key] = EndedPin(phase, answers, now_s + self._tombstone_s)
        while len(self._ended) > self._tombstones_max:
            self._ended.popitem(last=False)

    def overdue(self, now_s: float) -> list[OpenPin]:
        return [pin for pin in self.open.values() if pin.deadline_s <= now_s]

    def forget_tombstones(self, now_s: float) -> None:
        # All tombstones live equally long, so the oldest stand first.
        while self._ended:
            key, oldest = next(iter(self._ended.items()))
            if oldest.until_s > now_s:
                return
            del self._ended[key]

    def next_deadline_s(self) -> float:
        """The earliest deadline of an open pin; infinity without any."""
        return min((pin.deadline_s for pin in self.open.values()), default=float("inf"))


def blocks_of(pins: Iterable[OpenPin]) -> set[int]:
    """The distinct blocks that the pins hold."""
    held: set[int] = set()
    for pin in pins:
        held.update(pin.held.values())
    return held
