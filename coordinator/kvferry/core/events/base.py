"""The base of all events, and the lanes they travel in."""

from __future__ import annotations

import msgspec

FACTS, BLOCKS, COORD = "facts", "blocks", "coord"
"""A node's decisions, a node's detail, and the leader's decisions for a space."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of all events."""
