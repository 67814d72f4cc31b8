"""What the ledger calls a tenant: a tag of its ``cache_salt`` that gives nothing away."""

from __future__ import annotations

import hashlib

from kvferry.node.peers.keys import derive

TAG_BYTES = 6
KNOWN_MAX = 4_096
"""Salts whose tags are kept; beyond that a tag is made anew, which takes two microseconds."""


class Tenants:
    """Tags of salts, the same on every node with the same cluster key."""

    def __init__(self, key: bytes) -> None:
        self._key = derive(key, "tenant")
        self._known: dict[str, str] = {}

    def tag(self, salt: str | None) -> str:
        """A few hex digits for a salt; empty without one."""
        if not salt:
            return ""
        known = self._known.get(salt)
        if known is None:
            made = hashlib.blake2b(salt.encode(), digest_size=TAG_BYTES, key=self._key)
            known = made.hexdigest()
            if len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[salt] = known
        return known
