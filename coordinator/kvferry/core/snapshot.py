"""State as bytes. A snapshot is a cache: whatever does not match is discarded and folded again."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, get_args

import msgspec

from kvferry.core.digest import digest
from kvferry.core.events import SCHEMAS
from kvferry.core.state import State
from kvferry.errors import CodecError

FOLD_VERSION = 1
"""Raised whenever the same events fold to another state although no field has changed."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state with what proves that it is whole and was folded by this code."""

    fingerprint: str
    digest: str
    state: msgspec.Raw


def encode(state: State) -> bytes:
    """The state as msgpack, with its digest and the fingerprint of the schema."""
    # Not sorted: what is bounded forgets its oldest entry, so the order of dicts is state too.
    body = msgspec.msgpack.encode(state)
    return msgspec.msgpack.encode(
        Snapshot(fingerprint=fingerprint(), digest=digest(state), state=msgspec.Raw(body))
    )


def decode(data: bytes) -> State:
    """The reverse of :func:`encode`.

    Raises:
        CodecError: not a snapshot, of another schema, or its digest does not match. Discard it
            and fold from the ledger.
    """
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
        if snapshot.fingerprint != fingerprint():
            raise CodecError(
                f"the snapshot has schema {snapshot.fingerprint}, this version {fingerprint()}"
            )
        state = msgspec.msgpack.decode(snapshot.state, type=State)
    except msgspec.MsgspecError as error:
        raise CodecError(f"not a snapshot: {error}") from error
    found = digest(state)
    if found != snapshot.digest:
        raise CodecError(f"the snapshot says digest {snapshot.digest}, its state has {found}")
    return state


@cache
def fingerprint() -> str:
    """16 hex digits over the fields and types of state and events and the fold's version."""
    lines = {f"fold {FOLD_VERSION}"}
    _describe(State, lines)
    for name, (version, kind) in SCHEMAS.items():
        lines.add(f"{name} v{version} {kind.__qualname__}")
        _describe(kind, lines)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _describe(kind: Any, lines: set[str]) -> None:
    """Add one line per field of every struct that ``kind`` is made of."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        for part in get_args(kind):
            _describe(part, lines)
        return
    if f"struct {kind.__qualname__}" in lines:
        return
    lines.add(f"struct {kind.__qualname__}")
    for field in msgspec.structs.fields(kind):
        lines.add(f"{kind.__qualname__}.{field.encode_name}: {field.type!r}")
        _describe(field.type, lines)
