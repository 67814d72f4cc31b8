"""Hints: what an engine's reply carries so that the next node needs no plan.

A hint travels through proxies and, if they are careless, through clients. It is therefore
authenticated with a key derived for its space, says when it ends, and is useless elsewhere.
"""

from __future__ import annotations

import hmac

import msgspec

from kvferry.errors import KVFerryError
from kvferry.ids import HASH_BYTES
from kvferry.node.peers.keys import derive

VERSION = 1
BLOCKS_MAX = 1 << 31
TEXT_CHARS_MAX = 256
EXPIRES_MS_MAX = 1 << 62


class HintRefused(KVFerryError):
    """A hint that must not be used.

    Attributes:
        reason: ``bad_hint`` (malformed or forged), ``expired_hint`` or ``space_mismatch``.
        offer: what a genuine hint named; empty for a ``bad_hint``.
    """

    def __init__(self, reason: str, detail: str = "", *, offer: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.offer = offer


class Hint(msgspec.Struct, frozen=True):
    """Node ``node`` offers the ``blocks`` full blocks whose last one has chain hash ``tail``."""

    node: str
    space: str
    address: str
    """``host:port`` of the node's peer server."""
    incarnation: str
    offer: str
    blocks: int
    tail: bytes
    """32 bytes."""
    expires_ms: int
    """Unix milliseconds."""
    tier: str = "cache"


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hint as it stands in JSON."""

    v: int
    node: str
    space: str
    address: str
    incarnation: str
    offer: str
    blocks: int
    tail: str
    expires_ms: int
    tier: str
    mac: str


class HintBook:
    """Signs and reads the hints of one space."""

    def __init__(self, key: bytes, space: str) -> None:
        self._key = key
        self._space = space
        self._own_key = derive(key, "hint-key", space)

    def sign(self, hint: Hint) -> dict[str, object]:
        """The hint as a mapping that JSON can carry."""
        return {
            "v": VERSION,
            "node": hint.node,
            "space": hint.space,
            "address": hint.address,
            "incarnation": hint.incarnation,
            "offer": hint.offer,
            "blocks": hint.blocks,
            "tail": hint.tail.hex(),
            "expires_ms": hint.expires_ms,
            "tier": hint.tier,
            "mac": self._mac(hint),
        }

    def read(self, raw: object, now_ms: int) -> Hint:
        """The hint in ``raw``, if it is genuine, of this space, and ends after ``now_ms``.

        Raises:
            HintRefused: it must not be used. Nothing else is raised, whatever ``raw`` is.
        """
        try:
            signed = msgspec.convert(raw, _Signed, strict=True)
            hint = _unpack(signed)
            genuine = hmac.compare_digest(self._mac(hint).encode(), signed.mac.encode())
        except HintRefused:
            raise
        except Exception as error:
            # An engine thread reads what came over HTTP: no input may raise anything else.
            raise HintRefused("bad_hint", f"malformed: {type(error).__name__}") from error
        if not genuine:
            raise HintRefused("bad_hint", "its MAC does not fit; do all nodes load the same key?")
        if hint.space != self._space:
            where = f"{self._space} here, {hint.space} there"
            raise HintRefused("space_mismatch", where, offer=hint.offer)
        if hint.expires_ms <= now_ms:
            ago = f"{now_ms - hint.expires_ms} ms ago"
            raise HintRefused("expired_hint", ago, offer=hint.offer)
        return hint

    def _mac(self, hint: Hint) -> str:
        own = hint.space == self._space
        key = self._own_key if own else derive(self._key, "hint-key", hint.space)
        fields = (
            str(VERSION),
            hint.node,
            hint.space,
            hint.address,
            hint.incarnation,
            hint.offer,
            str(hint.blocks),
            hint.tail.hex(),
            str(hint.expires_ms),
            hint.tier,
        )
        return derive(key, "hint", *fields).hex()


def _unpack(signed: _Signed) -> Hint:
    """The hint's fields within their bounds; its MAC is not checked here."""
    texts = (signed.node, signed.space, signed.address, signed.incarnation, signed.offer)
    if signed.v != VERSION:
        raise HintRefused("bad_hint", f"version {signed.v} is unknown")
    if any(len(text) > TEXT_CHARS_MAX for text in (*texts, signed.tier, signed.tail, signed.mac)):
        raise HintRefused("bad_hint", f"a field has more than {TEXT_CHARS_MAX} characters")
    if not 0 < signed.blocks < BLOCKS_MAX or not 0 <= signed.expires_ms < EXPIRES_MS_MAX:
        raise HintRefused("bad_hint", "a number is out of range")
    tail = bytes.fromhex(signed.tail)
    if len(tail) != HASH_BYTES:
        raise HintRefused("bad_hint", f"its tail has {len(tail)} bytes instead of {HASH_BYTES}")
    return Hint(
        node=signed.node,
        space=signed.space,
        address=signed.address,
        incarnation=signed.incarnation,
        offer=signed.offer,
        blocks=signed.blocks,
        tail=tail,
        expires_ms=signed.expires_ms,
        tier=signed.tier,
    )
