"""Which track a slice is drawn on: one branch a node, a row for each of what overlaps."""

from __future__ import annotations

import hashlib

from kvferry.replay.perfetto.packets import Packets

ROWS_MAX = 64
"""Of one kind; what does not fit any more is drawn on the last, and may overlap there."""


class Tracks:
    """Makes tracks when they are first needed. Spaces contain nodes, and nodes kinds of things."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._known: set[int] = set()
        self._busy_until: dict[tuple[str, ...], list[float]] = {}

    def of(self, space: str, node: str, kind: str) -> int:
        """The track for instants of a kind."""
        return self._track((space, node, kind))

    def row(self, space: str, node: str, kind: str, begin_ms: float, end_ms: float) -> int:
        """A track of that kind that is free for all of this time."""
        path = (space, node, kind)
        rows = self._busy_until.setdefault(path, [])
        free = (number for number, busy_ms in enumerate(rows) if busy_ms <= begin_ms)
        number = next(free, min(len(rows), ROWS_MAX - 1))
        if number == len(rows):
            rows.append(0.0)
        rows[number] = max(rows[number], end_ms)
        return self._track(path, number)

    def _track(self, path: tuple[str, ...], number: int = 0) -> int:
        uuid = _uuid(*path, str(number))
        if uuid not in self._known:
            self._known.add(uuid)
            parent = self._track(path[:-1]) if len(path) > 1 else 0
            self._packets.track(uuid, path[-1] or "ledger", parent)
        return uuid


def _uuid(*parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def flow_id(space: str, transfer: str) -> int:
    """What joins both ends of a transfer."""
    return _uuid(space, transfer, "flow")
