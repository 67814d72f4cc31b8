"""Digests, and which blocks of a transfer they compare."""

from __future__ import annotations

import itertools
import zlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import BackendError
from kvferry.ports.backend import Verify
from kvferry_backends import digest

# Larger than what is fed to the libraries at once, and no multiple of it.
DATA = bytes(range(256)) * 1000 + b"tail"


def cut(*at: int) -> list[memoryview]:
    edges = [0, *at, len(DATA)]
    return [memoryview(DATA)[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("xxh3_64", xxhash.xxh3_64_intdigest(DATA)), ("crc32", zlib.crc32(DATA))],
)
def test_a_digest_is_of_the_bytes_however_they_are_cut(name: str, expected: int) -> None:
    function = digest.by_name(name)
    assert function(cut()) == expected
    assert function(cut(1, 77, 200_000)) == expected
    assert function([memoryview(DATA)[1:]]) != expected


def test_both_ends_agree_by_name() -> None:
    assert digest.names() == ("xxh3_64", "crc32")
    assert digest.common(["crc32", "xxh3_64"]) == "xxh3_64"
    assert digest.common(["crc32"]) == "crc32"
    with pytest.raises(BackendError, match="sha1"):
        digest.common(["sha1"])
    with pytest.raises(BackendError, match="sha1"):
        digest.by_name("sha1")


@given(st.text(max_size=20), st.integers(1, 300), st.lists(st.integers(0, 300), max_size=6))
def test_parts_choose_what_the_whole_would(transfer: str, total: int, cuts: list[int]) -> None:
    for verify in Verify:
        whole = digest.chosen(verify, transfer, total, 0, total)
        edges = sorted({0, total, *(at for at in cuts if at < total)})
        parts = [
            at
            for start, stop in itertools.pairwise(edges)
            for at in digest.chosen(verify, transfer, total, start, stop)
        ]
        assert parts == whole


def test_samples_hold_the_ends_and_cover_every_position_in_time() -> None:
    seen: set[int] = set()
    for nth in range(400):
        sample = digest.chosen(Verify.SAMPLE, f"t.{nth}", 100, 0, 100)
        assert sample[0] == 0
        assert sample[-1] == 99
        assert len(sample) <= 9
        seen.update(sample)
    assert seen == set(range(100))
    assert digest.chosen(Verify.OFF, "t", 100, 0, 100) == []
    assert digest.chosen(Verify.FULL, "t", 100, 10, 20) == list(range(10, 20))
