"""What happened: the closed union of ledger events.

Each event has a stable name and an integer version, given by :data:`SCHEMAS`; a name never
changes its meaning. Who wrote an event, when, and in which order stands in its envelope
(:mod:`kvferry.core.envelope`), not here. Runs are consecutive blocks of one chain: ``count``
blocks from block ``start`` on. ``hashes`` hold sampled short hashes
(:func:`kvferry.ids.short_hashes`), ``tail`` the full 32-byte hash of a run's last block.
Times end in ``_ms`` and are durations of the writer's monotonic clock.
"""

from __future__ import annotations

from typing import TypeAlias

from kvferry.core.events.base import BLOCKS, COORD, FACTS, Event
from kvferry.core.events.blocks import Evicted, Produced, Retained
from kvferry.core.events.coordinator import Checkpoint, LeaderElected, NodeLeft, PolicySet
from kvferry.core.events.nodes import (
    Gap,
    Inventory,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    OpenTransfer,
)
from kvferry.core.events.requests import RequestEnded, TurnEnded
from kvferry.core.events.sends import SendBegan, SendEnded
from kvferry.core.events.slots import SlotChanged
from kvferry.core.events.transfers import PinEnded, Requested, TransferFailed, Transferred

__all__ = [
    "BLOCKS",
    "COORD",
    "FACTS",
    "NAMES",
    "SCHEMAS",
    "AnyEvent",
    "Checkpoint",
    "Event",
    "Evicted",
    "Gap",
    "Inventory",
    "LeaderElected",
    "LinkProbed",
    "NodeClosed",
    "NodeJoined",
    "NodeLeft",
    "OpenTransfer",
    "PinEnded",
    "PolicySet",
    "Produced",
    "RequestEnded",
    "Requested",
    "Retained",
    "SendBegan",
    "SendEnded",
    "SlotChanged",
    "TransferFailed",
    "Transferred",
    "TurnEnded",
]

AnyEvent: TypeAlias = (
    Produced
    | Retained
    | Evicted
    | Requested
    | Transferred
    | TransferFailed
    | PinEnded
    | RequestEnded
    | TurnEnded
    | NodeJoined
    | NodeClosed
    | Gap
    | Inventory
    | LinkProbed
    | LeaderElected
    | NodeLeft
    | PolicySet
    | Checkpoint
    | SlotChanged
    | SendBegan
    | SendEnded
)

SCHEMAS: dict[str, tuple[int, type[Event]]] = {
    "produced": (1, Produced),
    "retained": (1, Retained),
    "evicted": (1, Evicted),
    "requested": (1, Requested),
    "transferred": (1, Transferred),
    "transfer_failed": (1, TransferFailed),
    "pin_ended": (1, PinEnded),
    "request_ended": (1, RequestEnded),
    "turn_ended": (1, TurnEnded),
    "node_joined": (1, NodeJoined),
    "node_closed": (1, NodeClosed),
    "gap": (1, Gap),
    "inventory": (1, Inventory),
    "link_probed": (1, LinkProbed),
    "leader_elected": (1, LeaderElected),
    "node_left": (1, NodeLeft),
    "policy_set": (1, PolicySet),
    "checkpoint": (1, Checkpoint),
    "slot_changed": (1, SlotChanged),
    "send_began": (1, SendBegan),
    "send_ended": (1, SendEnded),
}
"""Name to (version now written, type)."""

NAMES: dict[type[Event], str] = {kind: name for name, (_, kind) in SCHEMAS.items()}
