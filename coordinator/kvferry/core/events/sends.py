"""What happened to sends: a prompt's KV written by prefill into a TileRT decode node's buffer.

A send is pushed to a node that knows nothing of kvferry, so its source records it: no target wants
it, grants it or answers for it, as with the transfers between engines
(:mod:`kvferry.core.events.transfers`).
"""

from __future__ import annotations

from kvferry.core.events.base import Event


class SendBegan(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A request's KV is to be written to a decode node. Ends once, as ``send_ended``."""

    send: str
    request: str
    """As the engine calls it."""
    rid: str
    """The name under which the node is asked to decode."""
    target: str = ""
    """``host:port`` of the node's receive server; empty where the request's mark cannot be read."""
    tokens: int = 0
    """Of the prompt."""
    slot: str = ""
    """The node as ``slot_changed`` calls it; empty where no router leased it."""
    fence: int = 0
    """Of the lease under which it is written; 0 without one."""
    external_id: str = ""
    """As ``turn_ended`` calls the request."""


class SendEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Every byte is in place and the node was told so, or ``reason`` says why not.

    ``stage``: ``claim`` (before anything was asked of the node), ``staging``, ``admission``,
    ``write``, ``done``. ``reason``: see :data:`kvferry_connectors.tilert.errors.REASONS`.
    """

    send: str
    request: str
    stage: str = ""
    """Where it failed; empty for one that arrived."""
    reason: str = ""
    """Empty for one that arrived."""
    detail: str = ""
    bytes: int = 0
    """Over all ranks."""
    generation: int = -1
    """The node's number of the admission; -1 without one."""
    waited_ms: float = 0.0
    """From the request's arrival to the order that began the send."""
    admitted_ms: float = 0.0
    """From the order until the node had admitted every rank."""
    total_ms: float = 0.0
    """From the order to the end, on the rank that took longest."""
    no_origin: str = ""
    """Why the node was not told where the prompt comes from, so that it keeps nothing for the next
    turn; empty where it was told, or is not asked to keep anything."""
