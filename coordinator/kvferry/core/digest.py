"""One figure for a whole state: equal states, equal digests, in every process."""

from __future__ import annotations

import hashlib

import msgspec

from kvferry.core.state import SpaceState, State

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_EMPTY = SpaceState()


def digest(state: State) -> str:
    """64 hex digits over everything of every space: nodes, offers, transfers, rates, totals,
    reorder buffers.

    Leaves out ``position``, ``dropped`` and the quarantine: a message that changes nothing (a
    duplicate, an undecodable one) does not change the digest.
    """
    spaces = {name: space for name, space in state.spaces.items() if space != _EMPTY}
    return hashlib.sha256(_ENCODER.encode(spaces)).hexdigest()
