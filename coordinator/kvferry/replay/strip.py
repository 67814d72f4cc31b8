"""Takes out of events what tells tenants apart from one another or their prompts from others.

Names of requests and sessions become pseudonyms, and hashes of blocks other hashes, under a key
that is forgotten with the export: what belonged together still does, and nobody can look a known
prompt or a known session up. Free text goes. Nodes, spaces, addresses, times and numbers stay.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, cast

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import AnyEvent, Event
from kvferry.ids import SHORT_BYTES

RENAMED = {
    "request": "r",
    "external_id": "r",
    "prefill_request": "r",
    "decode_request": "r",
    "rid": "r",
    "session": "s",
    "tenant": "t",
}
"""Fields that name a request, a session or a tenant, and what a pseudonym begins with."""
EMPTIED = frozenset({"detail", "who"})
"""Fields of free text that may quote anything."""
KEPT = frozenset(
    {
        *("transfer", "offer", "hinted", "superseded_by", "object", "digest", "fingerprint"),
        *("send", "slot", "not_kept", "no_origin"),
        *("source", "source_incarnation", "target", "peer", "node", "incarnation", "replica"),
        *("prefill_node", "decode_node", "address", "version", "role", "backend", "basis"),
        *("miss", "reason", "why", "how", "stage", "fence", "verify", "outcome", "reuse", "tier"),
        *("via", "lane", "mode", "cost", "change", "holder", "http", "control", "profile"),
    }
)
"""Fields of text that name no tenant."""
_OWN_ID = re.compile(r"\w{16}\.\w+")
"""A transfer's or an offer's id, which is made of an incarnation and a number."""
_DIGEST_BYTES = 8


class Stripper:
    """Strips the batches of one export. Two exports have nothing in common."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def batch(self, batch: Batch) -> Batch:
        """The same batch without what identifies tenants."""
        entries = tuple(
            Entry(
                event=cast(AnyEvent, self._event(entry.event)),
                cause=self._cause(entry.cause),
                wall_ms=entry.wall_ms,
            )
            for entry in batch.entries
        )
        return msgspec.structs.replace(batch, entries=entries)

    def _cause(self, cause: str) -> str:
        return cause if _OWN_ID.fullmatch(cause) else self._renamed("r", cause)

    def _event(self, event: Event | msgspec.Struct) -> msgspec.Struct:
        changed: dict[str, Any] = {}
        for name in event.__struct_fields__:
            value = getattr(event, name)
            new = self._value(name, value)
            if new is not value:
                changed[name] = new
        return msgspec.structs.replace(event, **changed) if changed else event

    def _value(self, name: str, value: Any) -> Any:
        match value:
            case bytes() if value:
                return self._rehashed(value)
            case str() if value and name in RENAMED:
                return self._renamed(RENAMED[name], value)
            case str() if value and name in EMPTIED:
                return ""
            case tuple() if value and isinstance(value[0], msgspec.Struct):
                return tuple(self._event(one) for one in value)
            case _:
                return value

    def _renamed(self, sort: str, name: str) -> str:
        return f"{sort}-{self._digest(name.encode(), sort).hex()}" if name else ""

    def _rehashed(self, hashes: bytes) -> bytes:
        """Piece by piece, so that a full hash still begins with its short one."""
        pieces = range(0, len(hashes), SHORT_BYTES)
        return b"".join(self._digest(hashes[i : i + SHORT_BYTES], "h") for i in pieces)

    def _digest(self, data: bytes, sort: str) -> bytes:
        return hashlib.blake2b(
            data, digest_size=_DIGEST_BYTES, key=self._key, person=sort.encode()
        ).digest()
