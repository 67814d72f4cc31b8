"""Bytes damaged on the wire: found by the digest and recomputed, and harmful without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import PinEnded, TransferFailed, Transferred
from kvferry_backends.tcp.wire import HEAD_BYTES

pytestmark = pytest.mark.engine

BLOCK_BYTES = BLOCK * 1024
SIGN_BYTE, SIGN_BIT = 3, 0x80
"""Where a little-endian float32 keeps its sign: turning it keeps every number finite."""


class Fleet(NamedTuple):
    relay: Relay
    p0: EngineProcess
    careful: EngineProcess
    careless: EngineProcess


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine) -> Iterator[Fleet]:
    relay = Relay()
    try:
        made = Fleet(
            relay,
            start_engine("p0", connector=relay.connector_options()),
            start_engine("careful", connector={"verify": "full"}),
            start_engine("careless", connector={"verify": "off"}),
        )
        joined(made.p0, made.careful, made.careless)
        yield made
    finally:
        relay.close()


def turn_signs(relay: Relay, blocks: int) -> None:
    """Negate every number of the first blocks of each connection."""
    relay.damage(HEAD_BYTES + SIGN_BYTE, blocks * BLOCK_BYTES, every=4, mask=SIGN_BIT)


def pull(fleet: Fleet, target: EngineProcess, name: str, text: list[int]) -> Answer:
    """The answer of ``target`` with a hint to p0, which computed the prompt."""
    first = fleet.p0.run(f"{name}-p", text, tokens=2)
    return target.run(f"{name}-d", text, tokens=16, kvferry={"hint": first.hint})


def failures(plane: Plane, name: str) -> list[TransferFailed]:
    seen = plane.wait_for(
        lambda seen: [f for f in of(seen, TransferFailed) if f.request.startswith(name)],
        f"the failure of {name}",
    )
    return [f for f in of(seen, TransferFailed) if f.request.startswith(name)]


@pytest.mark.parametrize("damaged_bytes", [1, 8 * BLOCK_BYTES])
def test_damage_is_found_and_recomputed(
    fleet: Fleet, reference: EngineProcess, plane: Plane, damaged_bytes: int
) -> None:
    text = prompt(100 + damaged_bytes, 600)
    fleet.relay.damage(HEAD_BYTES + 5 * BLOCK_BYTES + 7, damaged_bytes)
    answer = pull(fleet, fleet.careful, f"found-{damaged_bytes}", text)
    assert fleet.relay.damaged == damaged_bytes
    fleet.relay.carry()
    assert answer.tokens == reference.run("found", text, tokens=16).tokens
    assert answer.report["pulled"] == 0
    assert answer.report["miss"] == "transfer_failed"
    (failed,) = failures(plane, f"found-{damaged_bytes}-d")
    assert (failed.stage, failed.reason, failed.source) == ("read", "digest", "p0")


def test_a_damaged_head_is_an_error_and_recomputed(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(110, 300)
    fleet.relay.damage(0, 1)
    answer = pull(fleet, fleet.careful, "head", text)
    fleet.relay.carry()
    assert answer.tokens == reference.run("head", text, tokens=16).tokens
    assert answer.report["pulled"] == 0
    (failed,) = failures(plane, "head-d")
    assert (failed.stage, failed.reason) == ("read", "error")


def test_without_the_digest_the_same_damage_changes_the_answer(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """The control: it is the digest that protects, and this damage would do harm."""
    text = prompt(120, 600)
    turn_signs(fleet.relay, blocks=18)
    harmed = pull(fleet, fleet.careless, "harmed", text)
    turn_signs(fleet.relay, blocks=18)
    first = fleet.p0.run("saved-p", text, tokens=2)
    saved = fleet.careful.run("saved-d", text, tokens=16, kvferry={"hint": first.hint})
    fleet.relay.carry()
    expected = reference.run("harmed", text, tokens=16).tokens
    assert harmed.report["pulled"] == 600 // BLOCK * BLOCK
    assert harmed.tokens != expected
    assert saved.tokens == expected
    assert [f.reason for f in failures(plane, "saved-d")] == ["digest"]


def test_the_same_way_undamaged_moves_the_bytes(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """After all that the connections, pins and blocks are as good as new."""
    for target in (fleet.careful, fleet.careless):
        text = prompt(130, 700)
        answer = pull(fleet, target, f"whole-{target.name}", text)
        assert answer.report["pulled"] == 700 // BLOCK * BLOCK
        assert answer.tokens == reference.run("whole", text, tokens=16).tokens


def test_the_books_balance(fleet: Fleet, plane: Plane) -> None:
    facts = conservation.check(plane, [fleet.p0, fleet.careful, fleet.careless])
    ended = {p.transfer: p.how for p in of(facts, PinEnded)}
    assert {ended[f.transfer] for f in of(facts, TransferFailed)} == {"abort"}
    assert {ended[t.transfer] for t in of(facts, Transferred)} == {"intact"}
    verified = {t.verify: t.verified_blocks for t in of(facts, Transferred)}
    assert verified == {"off": 0, "full": 700 // BLOCK}
