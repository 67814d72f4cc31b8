"""Where a prompt's KV comes from, told to the decode node that gets it.

TileRT's wire says nothing of a prompt but its length. A node that keeps what it generates, for the
next turn's prefill to pull, has to know more: the space, how vLLM lays blocks out there, and the
chain hashes of the prompt's blocks, which those of the generated blocks go on from. Prefill knows
all of it and sends it along in the admission's ``sampling``, which the wire passes on and which
nobody else reads. It is signed under the cluster key, so that nobody without that key can have a
node offer blocks to the nodes of a space.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from kvferry.ids import HASH_BYTES
from kvferry.node.peers.keys import derive
from kvferry_connectors.tilert.profiles import Profile

KEY = "kvferry"
"""Our key in the admission's ``sampling``."""
VALID_MS = 600_000
"""For so long after it was signed an origin may be used; a send ends far earlier."""
ROWS, INDEX = "rows", "index"
"""What a page holds: latent and rotary rows, or indexer keys."""
_PURPOSE = "tilert-origin"


class Page(msgspec.Struct, frozen=True, array_like=True):
    """One part of a block, in the order in which a node of the space has them."""

    kind: str
    """:data:`ROWS` or :data:`INDEX`."""
    layer: int
    bytes: int


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt as prefill knows it."""

    rid: str
    tokens: int
    """Of the prompt."""
    tail: tuple[int, ...]
    """Token ids behind the last full block."""
    hashes: bytes
    """Chain hashes of the prompt's full blocks, joined, as vLLM made them."""
    space: str
    components: dict[str, str]
    block_tokens: int
    ranks: int
    """Ranks of the engines of this space; each has the whole KV."""
    algorithm: str
    """vLLM's ``--prefix-caching-hash-algo``."""
    root: bytes
    """What the first block of a chain has for a parent."""
    profile: Profile
    form: str
    """Name of the :class:`kvferry_connectors.tilert.profiles.RowFormat`."""
    pages: tuple[Page, ...]
    session: str = ""
    external_id: str = ""
    last_turn: bool = False
    """The client says that its session ends with this turn."""
    retain_ms: int = 0
    """The client wants its blocks kept for so long."""
    expires_ms: int = 0
    """Unix time."""

    @property
    def chain(self) -> list[bytes]:
        """Chain hashes of the prompt's full blocks."""
        return [self.hashes[i : i + HASH_BYTES] for i in range(0, len(self.hashes), HASH_BYTES)]

    @property
    def block_bytes(self) -> int:
        """Of one block over all its pages."""
        return sum(page.bytes for page in self.pages)


class OriginRefused(Exception):
    """A node keeps nothing of this prompt.

    Attributes:
        reason: one of :data:`kvferry.core.story_not_kept.NOT_KEPT`.
        detail: the numbers, and the cure where there is one.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Origin)


def signed(origin: Origin, key: bytes) -> dict[str, str]:
    """What goes into the admission's ``sampling`` under :data:`KEY`."""
    said = _encoder.encode(origin)
    return {"origin": said.decode(), "mac": _mac(key, said)}


def unsaid(reason: str) -> dict[str, str]:
    """The same where prefill cannot tell an origin."""
    return {"none": reason}


def read(sampling: Mapping[str, Any] | None, key: bytes, now_ms: int) -> Origin:
    """The origin in an admission's ``sampling``.

    Raises:
        OriginRefused: there is none, or none that can be trusted and understood.
    """
    given = sampling.get(KEY) if isinstance(sampling, Mapping) else None
    if not isinstance(given, Mapping):
        raise OriginRefused(
            "no_origin",
            "prefill says nothing of the prompt: let its engine have KVFerryConnector beside "
            "KVFerryTileRTConnector",
        )
    said, mac = given.get("origin"), given.get("mac")
    if not isinstance(said, str) or not isinstance(mac, str):
        raise OriginRefused("no_origin", f"prefill cannot tell: {given.get('none')}")
    raw = said.encode()
    if not hmac.compare_digest(_mac(key, raw).encode(), mac.encode()):
        raise OriginRefused("bad_key", "it is not signed with this node's cluster key (--key)")
    try:
        origin = _decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise OriginRefused("bad_origin", f"another version of kvferry? {error}") from error
    if now_ms >= origin.expires_ms:
        raise OriginRefused("stale_origin", "it was signed too long ago, or clocks differ")
    _check(origin)
    return origin


def _check(origin: Origin) -> None:
    if origin.block_tokens < 1 or origin.ranks < 1 or not origin.pages:
        raise OriginRefused("bad_origin", "its blocks have no size")
    full, rest = divmod(origin.tokens, origin.block_tokens)
    if len(origin.hashes) != full * HASH_BYTES or len(origin.tail) != rest:
        raise OriginRefused(
            "bad_origin",
            f"{len(origin.hashes)} bytes of hashes and {len(origin.tail)} token ids are not a "
            f"prompt of {origin.tokens} tokens in blocks of {origin.block_tokens}",
        )


def _mac(key: bytes, said: bytes) -> str:
    return hmac.new(derive(key, _PURPOSE), said, hashlib.sha256).hexdigest()
