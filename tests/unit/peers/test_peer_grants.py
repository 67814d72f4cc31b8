from __future__ import annotations

import struct

import pytest

from kvferry.node.export.grants import pack_blocks, sign_grant, unpack_blocks, verify_grant

KEY = b"k" * 32
PACKED = pack_blocks([3, 1, 70_000])
GRANT = sign_grant(KEY, "t.1", PACKED, 5_000)


def test_blocks_are_packed_as_little_endian_words() -> None:
    assert struct.pack("<3I", 3, 1, 70_000) == PACKED
    assert unpack_blocks(PACKED) == (3, 1, 70_000)
    assert pack_blocks([]) == b""
    with pytest.raises(ValueError, match="whole number"):
        unpack_blocks(b"123")


def test_a_grant_allows_exactly_what_was_signed() -> None:
    assert verify_grant(KEY, "t.1", GRANT, PACKED, 4_999)


@pytest.mark.parametrize(
    ("key", "transfer", "grant", "packed", "now_ms"),
    [
        (b"x" * 32, "t.1", GRANT, PACKED, 0),
        (KEY, "t.2", GRANT, PACKED, 0),
        (KEY, "t.1", GRANT, pack_blocks([1, 3, 70_000]), 0),
        (KEY, "t.1", GRANT, pack_blocks([3, 1]), 0),
        (KEY, "t.1", GRANT, PACKED, 5_000),
        (KEY, "t.1", struct.pack(">Q", 9_000) + GRANT[8:], PACKED, 0),
        (KEY, "t.1", GRANT[:-1], PACKED, 0),
        (KEY, "t.1", b"", PACKED, 0),
        (KEY, "t.1", GRANT + b"x", PACKED, 0),
    ],
)
def test_anything_else_is_refused(
    key: bytes, transfer: str, grant: bytes, packed: bytes, now_ms: int
) -> None:
    assert not verify_grant(key, transfer, grant, packed, now_ms)


def test_without_a_time_the_wall_clock_counts() -> None:
    assert not verify_grant(KEY, "t.1", GRANT, PACKED)
    assert verify_grant(KEY, "t.1", sign_grant(KEY, "t.1", PACKED, 1 << 50), PACKED)
