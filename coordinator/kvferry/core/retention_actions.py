"""What retention has done, and the words for why."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.leases import HBM, HOST

LEASE, RENEW, END, TO_HOST = "lease", "renew", "end", "to_host"
HANDOVER, RETAIN, EXPECTED = "handover", "retain", "expected"
"""What a lease is for; chains that are copied to the host are ``expected`` too."""
EXPIRED, PRESSURE, SUPERSEDED, SESSION_END = "expired", "pressure", "superseded", "session_end"
POLICY = "policy"
"""An operator has lowered a budget."""


class Action(msgspec.Struct, frozen=True):
    """One thing to do.

    Attributes:
        act: ``lease`` or ``renew`` for ``ttl_ms``, ``end`` the lease, or copy ``to_host``: then
            whoever copies keeps the blocks meanwhile and calls :meth:`Retention.moved`.
        chain: key of the chain.
        reason: for a lease what it is for, for an end why.
        tier: of the lease that ends: ``host`` for what was copied there.
    """

    act: str
    chain: str
    reason: str
    ttl_ms: int = 0
    tier: str = HBM


def host_ends(keys: Iterable[str], reason: str) -> list[Action]:
    """Ends of chains in the host tier."""
    return [Action(END, key, reason, tier=HOST) for key in keys]
