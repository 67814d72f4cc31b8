"""Exclusive, fenced leases of TileRT decode nodes, for routers.

A router names the nodes it knows (:class:`SlotNode`), asks for one of them per request, and says
how each lease ended. ``slots`` is anything that does :class:`Slots`; in a router a
:class:`SlotClient`::

    slots = SlotClient(NodeSettings(nats_url=url, node="router-1"), incarnation=process_id)
    await slots.start()                                # on the loop that uses it; returns at once
    t0 = SlotNode(name="t0", http="http://10.0.0.7:5557", control="10.0.0.7:5556")
    await slots.register([t0])
    slot = await slots.acquire(["t0"], request="r1")   # before anything goes to prefill
    ...                                                # prefill with slot.node.control as target
    await slots.confirm(slot)                          # right before /pd/decode
    ...                                                # after the first output: slot.sure()?
    await slots.end(slot, REPLIED)

What is exclusive rests on three rules. A holder acts only while :meth:`Slot.sure`, which is for an
eighth of the node's idle limit (15 s of 120 s) after its last acknowledged sign of life. Prefill
writes to the node only within :attr:`Slot.send_within_s` (90 s) after it saw the request. And the
coordinator ends a lease whose holder is silent only after the whole limit, when the node says that
it is idle.
"""

from __future__ import annotations

from kvferry.core.slots import (
    CANCELLED,
    IDLE_LIMIT_MS,
    REFUSED,
    REPLIED,
    SlotNode,
)
from kvferry.errors import SlotError, SlotLost, SlotsBusy, SlotsUnavailable
from kvferry.node.slots.client import SlotClient
from kvferry.node.slots.port import Slots
from kvferry.node.slots.slot import Slot
from kvferry.node.slots.timing import SlotTiming

__all__ = [
    "CANCELLED",
    "IDLE_LIMIT_MS",
    "REFUSED",
    "REPLIED",
    "Slot",
    "SlotClient",
    "SlotError",
    "SlotLost",
    "SlotNode",
    "SlotTiming",
    "Slots",
    "SlotsBusy",
    "SlotsUnavailable",
]
