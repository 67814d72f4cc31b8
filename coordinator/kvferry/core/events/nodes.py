"""The life of a node, losses in its record, and links that it measured."""

from __future__ import annotations

import msgspec

from kvferry.core.events.base import Event
from kvferry.core.events.blocks import Retained


class NodeJoined(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A node begins an unbroken record; the first event of each epoch."""

    incarnation: str
    epoch: int
    address: str
    """``host:port`` of the node's peer server."""
    block_size: int
    components: dict[str, str] = msgspec.field(default_factory=dict)
    """What the space's fingerprint is made of, by name."""
    backends: tuple[str, ...] = ()
    blocks: int = 0
    """KV blocks in the node's pool."""
    block_bytes: int = 0
    """Bytes of one block over all layers and ranks."""
    host_blocks: int = 0
    """Blocks that the node's host tier can hold; 0 without one."""
    warnings: tuple[str, ...] = ()
    """What limits reuse on this node, in plain words with the cure."""
    version: str = ""
    role: str = ""
    lease_blocks: int = -1
    """Blocks of its pool that leases may hold; below 0 where it does not say how it keeps."""
    lease_ms: int = 0
    """How long its leases last."""
    watermark_blocks: int = 0
    """Leases end while fewer are free."""
    min_pull_tokens: int = 0
    """It pulls no fewer."""
    retain_max_ms: int = -1
    """A request may ask it for so long a lease; below 0 where it does not say."""


class NodeClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A clean stop: the node's offers and leases end."""

    incarnation: str


class Gap(Event, frozen=True, kw_only=True, omit_defaults=True):
    """``count`` events of a lane were handed over and not stored."""

    lane: str
    count: int
    why: str = "overflow"


class OpenTransfer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transfer that an inventory lists as still open at its target."""

    transfer: str
    request: str
    source: str
    wanted: int = 0
    granted: int = 0


class Inventory(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A part of what a node holds, after a gap. Applied as a whole at ``last``."""

    part: int
    last: bool
    offers: tuple[Retained, ...] = ()
    transfers: tuple[OpenTransfer, ...] = ()


class LinkProbed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A backend between a source and this node: measured, chosen, or both."""

    peer: str
    """The source."""
    backend: str
    gb_per_s: float
    """0 where it was chosen without a measurement."""
    floor_ms: float
    """A read of one block."""
    why: str = ""
    """This backend is used from now on, and why; empty for one that is not."""
