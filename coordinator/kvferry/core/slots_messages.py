"""What routers and the leading coordinator say to each other about decode slots.

Asked by request and reply on :func:`slots_subject` of the replica that announced itself as leader,
one message a question, msgpack. Every question may be repeated: it gets the same answer.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.core.slots import SlotNode

SLOT_NEWS_SUBJECT = "kvfbus.slotnews"
"""Where the leader says which nodes became free (:class:`SlotNews`)."""


def slots_subject(replica: str) -> str:
    """Where one replica answers the questions below."""
    return f"kvfbus.slots.{replica}"


class Lent(msgspec.Struct, frozen=True):
    """One lease, as its holder names it."""

    node: str
    fence: int


class RegisterSlots(msgspec.Struct, frozen=True, kw_only=True, tag="register"):
    """These nodes may be lent. What is known already changes nothing."""

    holder: str
    nodes: tuple[SlotNode, ...]


class AcquireSlot(msgspec.Struct, frozen=True, kw_only=True, tag="acquire"):
    """Lend the first of these nodes that is free. Sent again with the same number it has the same
    answer; with a higher one the lease of a lower one ends, for its holder never heard of it."""

    holder: str
    """One router process: its name and incarnation."""
    number: int
    """Grows with each message of this holder."""
    request: str
    candidates: tuple[str, ...]
    """Names, the best first."""
    session: str = ""
    waited_ms: float = 0.0
    """For how long the request has waited for a slot so far."""


class ConfirmSlot(msgspec.Struct, frozen=True, kw_only=True, tag="confirm"):
    """Decoding begins: ``/pd/decode`` is about to be sent."""

    holder: str
    lent: Lent


class RenewSlots(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """The holder lives and has exactly these leases. Others in its name, of requests that it does
    not ask for, end: it never heard of them."""

    holder: str
    number: int
    lent: tuple[Lent, ...] = ()
    asking: tuple[str, ...] = ()
    """Requests whose :class:`AcquireSlot` is not answered yet."""


class EndSlot(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """A lease ends, or with ``how`` ``abandoned`` its holder lost sight of it."""

    holder: str
    lent: Lent
    how: str
    """A word of :data:`kvferry.core.slots.ENDS` but ``idle``, or ``abandoned``."""
    why: str = ""


SlotQuestion: TypeAlias = RegisterSlots | AcquireSlot | ConfirmSlot | RenewSlots | EndSlot

GRANTED, BUSY, UNAVAILABLE = "granted", "busy", "unavailable"
DONE, REFUSED, NOT_LEADER = "done", "refused", "not_leader"


class SlotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the replica says.

    ``verdict``: ``granted`` | ``busy`` | ``unavailable`` to :class:`AcquireSlot`, ``done`` |
    ``refused`` to the others; to all of them ``unavailable`` where the ledger does not answer, and
    ``not_leader`` where somebody else decides or nobody yet.
    """

    replica: str
    verdict: str
    why: str = ""
    """In plain words: who holds what since when, or what is wrong."""
    reason: str = ""
    """The stable word for ``why``: one of :data:`kvferry.core.decision.SLOT_REFUSALS`, or
    ``ledger`` where the decision could not be stored."""
    leader: str = ""
    """With ``not_leader``: whom to ask; empty while it is not settled."""
    node: SlotNode | None = None
    fence: int = 0
    retry_after_ms: float = 0.0
    """With ``busy``: when a slot may become free, from how long leases last."""
    gone: tuple[Lent, ...] = ()
    """To :class:`RenewSlots`: those that the holder does not have, or not any more."""


class SlotNews(msgspec.Struct, frozen=True, kw_only=True):
    """Leader to all routers: these nodes became free."""

    replica: str
    term: int
    nodes: tuple[str, ...]
