"""When a node is asked to begin a new epoch: not at once, not twice in a row, but surely."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from kvferry.core.events import FACTS
from kvferry.core.messages import Heartbeat
from kvferry.core.state import JOINED, NodeState, State

NODES_MAX = 4_096
RESYNC_AFTER_S = 1.0
"""A node that is not known as it says may only be ahead of our fold: ask it after so long."""
RESYNC_EVERY_S = 5.0
STUCK_AFTER_S = 10.0
"""A missing message may still be on its way; after so long it is not."""

Key = tuple[str, str]
T = TypeVar("T")


class ResyncTimer:
    """Per node: since when it is out of step, and when it was asked last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wanted: dict[Key, tuple[float, float]] = {}
        self._stuck_since: dict[Key, float] = {}

    def due(self, key: Key) -> bool:
        """Whether a resync that is wanted now should be sent; if so it counts as sent."""
        now = self._clock()
        since, asked = self._wanted.get(key, (now, -math.inf))
        due = now - since >= RESYNC_AFTER_S and now - asked >= RESYNC_EVERY_S
        _bounded_put(self._wanted, key, (since, now if due else asked))
        return due

    def in_step(self, key: Key) -> None:
        """The node wrote a fact that counted."""
        self._wanted.pop(key, None)

    def stuck(self, state: State, beat: Heartbeat) -> str:
        """Why a node's record waits for messages that will not come; empty while it does not.

        The fold has no clock: it holds back what follows a hole until a whole window of batches
        came, which for a quiet node may take hours. The hole's age is known here.
        """
        key = (beat.space, beat.node)
        why = _waits(state, beat)
        if not why:
            self._stuck_since.pop(key, None)
            return ""
        now = self._clock()
        since = self._stuck_since.get(key, now)
        _bounded_put(self._stuck_since, key, since)
        return why if now - since >= STUCK_AFTER_S else ""


def _waits(state: State, beat: Heartbeat) -> str:
    space = state.spaces.get(beat.space)
    node = space.nodes.get(beat.node) if space is not None else None
    if node is None or _is_later(node, beat):
        return "the beginning of this record is not in the ledger"
    lane = node.lanes.get(FACTS)
    here = (node.incarnation, node.epoch) == (beat.incarnation, beat.epoch)
    if here and node.status == JOINED and lane is not None and lane.held:
        return f"the ledger holds facts after {lane.last} but not the one that follows it"
    return ""


def _is_later(node: NodeState, beat: Heartbeat) -> bool:
    """Whether the heartbeat is of a record that is neither the present one nor an earlier one."""
    if beat.incarnation == node.incarnation:
        return beat.epoch > node.epoch
    return beat.incarnation not in node.superseded


def _bounded_put(table: dict[Key, T], key: Key, value: T) -> None:
    table.pop(key, None)
    table[key] = value
    if len(table) > NODES_MAX:
        del table[next(iter(table))]
