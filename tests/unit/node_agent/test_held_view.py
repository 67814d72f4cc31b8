"""What a node believes of what the coordinator tells it is held."""

from __future__ import annotations

from typing import Any

from kvferry.core.held import HeldFilter
from kvferry.core.messages import Held, encode
from kvferry.ids import pack_short
from kvferry.node.plans.held import TRUSTED_S, HeldView

A, B = b"a" * 32, b"b" * 32


def short(chain_hash: bytes) -> int:
    return int.from_bytes(chain_hash[:8], "big")


def whole(*hashes: bytes, **fields: Any) -> Held:
    known = HeldFilter.for_count(16)
    for one in hashes:
        known.add(short(one))
    given = {"replica": "c0", "term": 1, "series": "s", "number": 0, "position": 5}
    return Held(**{**given, "bits": known.pack(), **fields})


def news(number: int, *hashes: bytes, **fields: Any) -> Held:
    added = pack_short(short(one) for one in hashes)
    given = {"replica": "c0", "term": 1, "series": "s", "position": 6, "added": added}
    return Held(number=number, **{**given, **fields})


class Scene:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.view = HeldView(clock=lambda: self.now_s)

    async def hear(self, *messages: Held) -> None:
        for one in messages:
            await self.view.heard("kvfbus.held.x", encode(one), None)


async def test_before_the_whole_was_heard_everything_may_be_held() -> None:
    scene = Scene()
    assert not scene.view.lacks(A)
    await scene.hear(news(1, B))
    assert not scene.view.lacks(A)
    assert scene.view.position == 0


async def test_what_is_told_is_followed() -> None:
    scene = Scene()
    await scene.hear(whole(A))
    assert (scene.view.lacks(A), scene.view.lacks(B)) == (False, True)
    await scene.hear(news(1, B))
    assert (scene.view.lacks(A), scene.view.lacks(B)) == (False, False)
    assert scene.view.position == 6
    await scene.hear(whole(B, series="t"))
    assert (scene.view.lacks(A), scene.view.lacks(B)) == (True, False)


async def test_a_missed_number_ends_the_trust_until_the_next_whole() -> None:
    scene = Scene()
    await scene.hear(whole(A), news(2, B))
    assert not scene.view.lacks(b"c" * 32)
    await scene.hear(news(3, B))
    assert not scene.view.lacks(b"c" * 32)
    await scene.hear(whole(A, series="t"))
    assert scene.view.lacks(b"c" * 32)


async def test_a_sign_of_life_shows_a_missed_number() -> None:
    scene = Scene()
    await scene.hear(whole(A), news(0))
    assert scene.view.lacks(B)
    await scene.hear(news(1))
    assert not scene.view.lacks(B)


async def test_silence_ends_the_trust() -> None:
    scene = Scene()
    await scene.hear(whole(A))
    scene.now_s += TRUSTED_S
    assert scene.view.lacks(B)
    scene.now_s += 0.1
    assert not scene.view.lacks(B)
    await scene.hear(news(0))
    assert not scene.view.lacks(B), "what was missed meanwhile is not known"


async def test_a_deposed_leader_is_not_heard() -> None:
    scene = Scene()
    await scene.hear(whole(A, term=2, replica="c1"), whole(B, series="old"))
    assert (scene.view.lacks(A), scene.view.lacks(B)) == (False, True)
    scene.view.leader("c1")
    assert scene.view.lacks(B)
    scene.view.leader("c2")
    assert not scene.view.lacks(B)


async def test_what_cannot_be_read_ends_the_trust() -> None:
    for bad in (b"\xc1", encode(whole(A, bits=b"abc")), encode(news(1, added=b"123"))):
        scene = Scene()
        await scene.hear(whole(A))
        assert scene.view.lacks(B)
        await scene.view.heard("kvfbus.held.x", bad, None)
        assert not scene.view.lacks(B)
