"""What projections follow: one applied event and where it stood."""

from __future__ import annotations

import msgspec

from kvferry.core.envelope import Entry, Position


class Applied(msgspec.Struct):
    """An event of the ledger in its place.

    ``offers`` names every offer that the event added, changed or ended, filled in when it is
    folded: a projection looks each of them up in the state, and drops those that are not there.
    """

    space: str
    node: str
    incarnation: str
    epoch: int
    lane: str
    seq: int
    entry: Entry
    position: Position
    offers: tuple[str, ...] = ()
