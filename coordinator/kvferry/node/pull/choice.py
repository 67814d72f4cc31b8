"""Which backend reads from one rank of one source: measured, kept, and set aside when it fails.

Nothing here looks at a clock or moves a byte; :mod:`kvferry.node.pull.links` keeps one
:class:`Choice` a pair and :mod:`kvferry.node.pull.reading` does what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PROBE_BLOCKS_MIN = 4
"""Fewer say nothing about a rate."""
PROBE_BYTES_MAX = 32 * 1024 * 1024
"""What a probe reads with each backend at most."""
PROBE_MS_MAX = 20.0
"""About so long a probe reads with each backend at most, judged by how long one block takes."""
PROBE_SHARE_MAX = 0.5
"""Of a transfer; the rest goes over the backend that turned out best."""
PROBE_AGAIN_S = 600.0
"""The backends that lost are measured again after this time."""
PROBE_PAUSE_S = 60.0
"""Between two probes of one pair, whatever happens."""
SLOWED_SHARE = 0.4
"""Of the rate at the last probe: below it the others are measured again."""
SWITCH_FACTOR = 1.25
"""So much faster another backend must be to take the place of the one in use."""
DECAY = 0.25
"""Weight of a transfer in the mean rate of the backend in use."""
SET_ASIDE_S = 5.0
"""After a first failure; doubled by each further one."""
SET_ASIDE_MAX_S = 600.0
DETAIL_CHARS_MAX = 160


class Measured(msgspec.Struct, frozen=True):
    """What a probe found out about one backend."""

    backend: str
    gb_per_s: float
    floor_ms: float
    """A read of one block, after what is set up once."""


class Chosen(msgspec.Struct, frozen=True):
    """The backend that a pair uses from now on, and why."""

    backend: str
    why: str
    measured: tuple[Measured, ...] = ()
    """What the reason rests on; empty where nothing was measured."""


class _Known:
    """What is known of one backend on this pair."""

    __slots__ = ("aside_until_s", "failures", "probed_rate", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        """GB/s, a decayed mean; 0 while nothing was measured."""
        self.probed_rate = 0.0
        """GB/s at the last probe."""
        self.failures = 0
        """In a row."""
        self.aside_until_s = 0.0


class Choice:
    """The choice of one pair. Backends are named in our order of preference, always all of those
    that both ends have."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._chosen = ""
        self._probed_s = float("-inf")
        self._scale_blocks = PROBE_BLOCKS_MIN
        """Smaller reads than the probes spend their time otherwise, and say nothing of the rate."""
        self._trouble = ""
        self._news: Chosen | None = None

    def order(self, names: Sequence[str], now_s: float) -> list[str]:
        """Which backends to try, best first: all of ``names``, failed ones last."""
        usable = self.usable(names, now_s)
        usable.sort(key=lambda name: (name != self._chosen, -self._of(name).rate))
        aside = [name for name in names if name not in usable]
        aside.sort(key=lambda name: self._of(name).aside_until_s)
        return usable + aside

    def usable(self, names: Sequence[str], now_s: float) -> list[str]:
        """Those of ``names`` that are not set aside."""
        return [name for name in names if self._of(name).aside_until_s <= now_s]

    def settle(self, names: Sequence[str], now_s: float) -> None:
        """Note the first choice of a pair that nothing was measured for yet."""
        if self._chosen or not names:
            return
        first = self.order(names, now_s)[0]
        why = "the only one both have" if len(names) == 1 else "first by preference, not measured"
        self._choose(Chosen(first, why))

    def probe_blocks(
        self, names: Sequence[str], blocks: int, block_bytes: int, now_s: float
    ) -> int:
        """Blocks that each usable backend should read of a transfer of ``blocks`` to be measured.

        0 where there is nothing to choose from, nothing to find out, or the transfer is too
        small to tell.
        """
        usable = self.usable(names, now_s)
        if len(usable) < 2 or not self._stale(usable, now_s):
            return 0
        most = max(1, PROBE_BYTES_MAX // max(1, block_bytes))
        share = int(blocks * PROBE_SHARE_MAX) // len(usable)
        each = min(share, max(most, PROBE_BLOCKS_MIN))
        if each < PROBE_BLOCKS_MIN:
            return 0
        self._probed_s, self._scale_blocks, self._trouble = now_s, each, ""
        return each

    def probed(self, measured: Sequence[Measured]) -> None:
        """Choose by what a probe found out about the backends that worked; it must be one."""
        for one in measured:
            known = self._of(one.backend)
            known.rate = known.probed_rate = one.gb_per_s
            known.failures, known.aside_until_s = 0, 0.0
        best = max(measured, key=lambda one: one.gb_per_s)
        present = next((one for one in measured if one.backend == self._chosen), None)
        if len(measured) == 1:
            why = "the only one that worked when measured"
        elif present is None or best.backend == present.backend:
            why = f"fastest of {len(measured)} measured"
        elif best.gb_per_s > SWITCH_FACTOR * present.gb_per_s:
            why = f"faster than {present.backend}, used until now"
        else:
            best, why = present, f"as fast as {best.backend}, and in use"
        if self._trouble:
            why = f"{why}; {self._trouble}"
        self._choose(Chosen(best.backend, why, tuple(measured)))

    def moved(self, name: str, size_bytes: int, took_ms: float, blocks: int) -> None:
        """A read ended well."""
        known = self._of(name)
        known.failures, known.aside_until_s = 0, 0.0
        if blocks < self._scale_blocks or took_ms <= 0:
            return
        rate = size_bytes / took_ms / 1e6
        known.rate = rate if not known.rate else known.rate + DECAY * (rate - known.rate)

    def failed(self, name: str, detail: str, names: Sequence[str], now_s: float) -> None:
        """A backend failed here: the others go first for a time, longer each time."""
        known = self._of(name)
        aside_s = min(SET_ASIDE_S * 2.0 ** min(known.failures, 32), SET_ASIDE_MAX_S)
        known.failures += 1
        known.aside_until_s = now_s + aside_s
        known.probed_rate = 0.0  # To be measured again as soon as it may be used again.
        self._trouble = f"{name} is set aside for {aside_s:.0f} s: {detail[:DETAIL_CHARS_MAX]}"
        instead = self.order(names, now_s)[0]
        if instead != name:
            self._choose(Chosen(instead, self._trouble))

    def take_news(self) -> Chosen | None:
        """The choice, if it was made or made anew since the last call."""
        news, self._news = self._news, None
        return news

    def _choose(self, chosen: Chosen) -> None:
        self._chosen = chosen.backend
        self._news = chosen

    def _stale(self, usable: Sequence[str], now_s: float) -> bool:
        if now_s - self._probed_s < PROBE_PAUSE_S:
            return False
        if now_s - self._probed_s >= PROBE_AGAIN_S:
            return True
        if any(not self._of(name).probed_rate for name in usable):
            return True
        now_used = self._known.get(self._chosen)
        return now_used is not None and now_used.rate < SLOWED_SHARE * now_used.probed_rate

    def _of(self, name: str) -> _Known:
        return self._known.setdefault(name, _Known())
