"""Digests of blocks, and which blocks of a transfer are compared.

Both ends must use the same function, so each says by name which ones it has.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kvferry.errors import BackendError
from kvferry.ports.backend import Verify

SAMPLE_EVERY_BLOCKS = 16
DIGEST_BYTES = 8

# Both libraries give up the GIL for inputs above some size (100,000 and 5,120 bytes). Taking it
# back costs up to 5 ms beside a busy thread, for work of some microseconds, so feed less.
_XXH3_PIECE_BYTES = 64 * 1024
_CRC32_PIECE_BYTES = 4 * 1024

BlockDigest: TypeAlias = Callable[[Sequence[memoryview]], int]
"""A block's bytes, span by span, to a number of at most 64 bits."""


def _crc32(views: Sequence[memoryview]) -> int:
    value = 0
    for view in views:
        for at in range(0, len(view), _CRC32_PIECE_BYTES):
            value = zlib.crc32(view[at : at + _CRC32_PIECE_BYTES], value)
    return value


def _find_digests() -> dict[str, BlockDigest]:
    found: dict[str, BlockDigest] = {}
    try:
        from xxhash import xxh3_64, xxh3_64_intdigest
    except ImportError:
        pass
    else:

        def xxh3(views: Sequence[memoryview]) -> int:
            if len(views) == 1 and len(views[0]) <= _XXH3_PIECE_BYTES:
                return int(xxh3_64_intdigest(views[0]))
            state = xxh3_64()
            update = state.update
            for view in views:
                if len(view) <= _XXH3_PIECE_BYTES:
                    update(view)
                    continue
                for at in range(0, len(view), _XXH3_PIECE_BYTES):
                    update(view[at : at + _XXH3_PIECE_BYTES])
            return int(state.intdigest())

        found["xxh3_64"] = xxh3
    found["crc32"] = _crc32
    return found


_DIGESTS = _find_digests()


def names() -> tuple[str, ...]:
    """The digests that this process has, best first; ``crc32`` is always among them."""
    return tuple(_DIGESTS)


def by_name(name: str) -> BlockDigest:
    """The digest called ``name``.

    Raises:
        BackendError: this process does not have it.
    """
    try:
        return _DIGESTS[name]
    except KeyError:
        raise BackendError(
            f"no digest {name!r} here, only {', '.join(_DIGESTS)}; install xxhash on both ends"
        ) from None


def common(theirs: Sequence[str]) -> str:
    """The best digest that both ends have.

    Raises:
        BackendError: there is none.
    """
    for name in _DIGESTS:
        if name in theirs:
            return name
    raise BackendError(f"the peer has {', '.join(theirs) or 'no digest'}, we {', '.join(_DIGESTS)}")


def chosen(verify: Verify, transfer: str, total: int, start: int, stop: int) -> list[int]:
    """Which of the positions ``start`` to ``stop`` of a transfer of ``total`` blocks to compare.

    A sample holds the first, the last and every 16th block; where the 16ths begin follows from
    the transfer's id, so that both ends agree and many transfers cover every position.
    """
    if verify is Verify.OFF:
        return []
    if verify is Verify.FULL:
        return list(range(start, stop))
    offset = zlib.crc32(transfer.encode()) % SAMPLE_EVERY_BLOCKS
    begin = start + (offset - start) % SAMPLE_EVERY_BLOCKS
    picked = set(range(begin, stop, SAMPLE_EVERY_BLOCKS))
    picked.update(edge for edge in (0, total - 1) if start <= edge < stop)
    return sorted(picked)
