"""An origin for tests: a small prompt of a small model."""

from __future__ import annotations

from typing import Any

import msgspec

from kvferry_connectors.tilert.origin import INDEX, ROWS, Origin, Page
from kvferry_connectors.tilert.profiles import BF16, INDEX_PAGE_BYTES, Profile
from kvferry_connectors.vllm.space import space_id

KEY = b"\x11" * 32
ROOT = b"\x22" * 32
SMALL = Profile(name="small", layers=2, version=900)
PAGES = tuple(Page(ROWS, n, 64 * BF16.row_bytes) for n in range(2)) + tuple(
    Page(INDEX, n, INDEX_PAGE_BYTES) for n in range(2)
)


def make(**changes: Any) -> Origin:
    """Of 70 tokens."""
    components = {"model": "m@1", "hash_scheme": "sha256_cbor:0"}
    origin = Origin(
        rid="r1",
        tokens=70,
        tail=tuple(range(64, 70)),
        hashes=b"\x33" * 32,
        space=space_id(components),
        components=components,
        block_tokens=64,
        ranks=1,
        algorithm="sha256_cbor",
        root=ROOT,
        profile=SMALL,
        form=BF16.name,
        pages=PAGES,
        expires_ms=2_000,
    )
    return msgspec.structs.replace(origin, **changes)
