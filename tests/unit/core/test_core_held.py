"""The set that may say yes too often and never no."""

from __future__ import annotations

import random

import pytest

from kvferry.core.held import BITS_MAX, HeldFilter


def hashes(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.getrandbits(64) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 500, 20_000])
def test_it_never_denies_what_was_added_and_seldom_claims_what_was_not(count: int) -> None:
    held, others = hashes(1, count), hashes(2, 20_000)
    known = HeldFilter.for_count(count)
    for one in held:
        known.add(one)
    assert all(known.might_hold(one) for one in held)
    wrong = sum(known.might_hold(one) for one in others)
    assert wrong < 0.01 * len(others)
    assert count <= known.room


def test_an_empty_one_holds_nothing_and_packs_to_itself() -> None:
    known = HeldFilter.for_count(0)
    assert not any(known.might_hold(one) for one in hashes(3, 1000))
    known.add(7)
    again = HeldFilter(known.pack())
    assert again.might_hold(7)
    assert again.pack() == known.pack() != HeldFilter.for_count(0).pack()


def test_it_grows_up_to_what_one_message_holds() -> None:
    assert len(HeldFilter.for_count(100_000_000).pack()) * 8 == BITS_MAX


@pytest.mark.parametrize("size", [0, 3, 1000])
def test_bits_that_are_no_power_of_two_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        HeldFilter(bytes(size))
