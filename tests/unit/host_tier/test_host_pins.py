"""Blocks of the host tier are pinned like the engine's own, under numbers and grants of theirs."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import chain

from kvferry.core.events import PinEnded
from kvferry.node.export.grants import pack_blocks, verify_grant, verify_host_grant
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.wire import Done, Granted, Pin, Refused

FIRST = 100
"""The engine has so many blocks; the host tier's slots count on from there."""
KEY = b"k" * 32


class Source:
    """A node with a host tier."""

    def __init__(self, *, served: bool = True) -> None:
        self.ended: list[PinEnded] = []
        self.table = ExportTable("life", on_pin_ended=self.ended.append)
        theirs = {"tcp": b"slots"} if served else {}
        self.table.set_ranks([RankEndpoint(KEY, {"tcp": b"blocks"}, theirs)])
        self.table.set_host(FIRST)

    def pin(self, hashes: list[bytes], name: str = "t", *, host: bool = True) -> Granted | Refused:
        frame = Pin(transfer=name, incarnation="life", hashes=tuple(hashes), host=host)
        return self.table.pin("p0", frame)

    def intact(self, name: str = "t") -> bool:
        return self.table.done("p0", Done(transfer=name)).intact


def test_a_chain_is_granted_from_both_places() -> None:
    source, hashes = Source(), chain("a", 6)
    source.table.offer(hashes[:3], [7, 8, 9])
    source.table.offer_host(hashes[1:], [FIRST + i for i in range(1, 6)])
    granted = source.pin(hashes)
    assert isinstance(granted, Granted)
    assert granted.blocks == (7, 8, 9, FIRST + 3, FIRST + 4, FIRST + 5)
    assert granted.host_first == FIRST
    assert granted.host_backends == ({"tcp": b"slots"},)
    assert source.intact()


def test_the_host_tier_takes_over_what_the_engine_reuses() -> None:
    source, hashes = Source(), chain("a", 2)
    source.table.offer(hashes, [7, 8])
    source.table.offer_host(hashes, [FIRST, FIRST + 1])
    first = source.pin(hashes)
    assert isinstance(first, Granted)
    assert (first.blocks, first.host_first, first.host_backends) == ((7, 8), 0, ())
    source.table.reused(7)
    assert not source.intact(), "the pin held the engine's block"
    second = source.pin(hashes, "u")
    assert isinstance(second, Granted)
    assert second.blocks == (FIRST, 8)
    assert source.table.held(hashes) == 2


def test_a_slot_that_is_given_up_makes_its_pins_void() -> None:
    source, hashes = Source(), chain("a", 2)
    source.table.offer_host(hashes, [FIRST, FIRST + 1])
    assert isinstance(source.pin(hashes), Granted)
    assert source.table.pinned_blocks() == {FIRST, FIRST + 1}
    source.table.reused(FIRST + 1)
    assert not source.intact()
    again = source.pin(hashes, "u")
    assert isinstance(again, Granted)
    assert again.blocks == (FIRST,)
    assert source.intact("u")


@pytest.mark.parametrize(("asks", "served"), [(False, True), (True, False)])
def test_nothing_is_granted_that_the_target_could_not_read(asks: bool, served: bool) -> None:
    source, hashes = Source(served=served), chain("a", 4)
    source.table.offer(hashes[:2], [7, 8])
    source.table.offer_host(hashes, [FIRST + i for i in range(4)])
    granted = source.pin(hashes, host=asks)
    assert isinstance(granted, Granted)
    assert granted.blocks == (7, 8)


def test_a_reset_ends_the_host_tier_too() -> None:
    source, hashes = Source(), chain("a", 2)
    source.table.offer_host(hashes, [FIRST, FIRST + 1])
    assert isinstance(source.pin(hashes), Granted)
    source.table.clear()
    assert not source.intact()
    assert isinstance(source.pin(hashes, "u"), Refused)


def test_a_grant_for_a_slot_is_none_for_the_block_of_that_number() -> None:
    source, hashes = Source(), chain("a", 2)
    source.table.offer(hashes[:1], [7])
    source.table.offer_host(hashes[1:], [FIRST + 3])
    blocks, slots = source.pin(hashes[:1]), source.pin(hashes[1:])
    assert isinstance(blocks, Granted)
    assert isinstance(slots, Granted)
    (of_block,), (of_slot,) = blocks.grants, slots.grants
    assert verify_host_grant(KEY, "t", of_slot, pack_blocks([3]), FIRST)
    assert not verify_grant(KEY, "t", of_slot, pack_blocks([3]))
    assert verify_grant(KEY, "t", of_block, pack_blocks([7]))
    assert not verify_host_grant(KEY, "t", of_block, pack_blocks([7]), FIRST)
    assert not verify_host_grant(KEY, "t", of_slot, b"odd", FIRST)
