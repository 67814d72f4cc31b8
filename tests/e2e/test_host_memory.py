"""CPU engines of one host read each other's memory and skip the socket."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Transferred

BLOCK = 32
DIRECT = {"backends": ["peer_host"]}

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engines(start_engine: StartEngine) -> tuple[EngineProcess, EngineProcess]:
    p0, d0 = start_engine("p0", connector=DIRECT), start_engine("d0", connector=DIRECT)
    joined(p0, d0)
    return p0, d0


def test_a_conversation_goes_both_ways_without_a_socket(
    engines: tuple[EngineProcess, EngineProcess], reference: EngineProcess, plane: Plane
) -> None:
    p0, d0 = engines
    text = prompt(1, 900)
    first = p0.run("a-p", text, tokens=1)
    answer = d0.run("a-d", text, tokens=40, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 900 // BLOCK * BLOCK
    assert answer.tokens == reference.run("a", text, tokens=40).tokens

    longer = text + answer.tokens + prompt(2, 60)
    second = p0.run("b-p", longer, tokens=8, kvferry={"hint": answer.hint})
    assert second.report["pulled"] > 0
    assert second.tokens == reference.run("b", longer, tokens=8).tokens

    seen = plane.wait_for(
        lambda seen: len(of(seen, Transferred)) >= 2, "the two transfers in the ledger"
    )
    moved = of(seen, Transferred)
    assert {event.backend for event in moved} == {"peer_host"}
    # No wire, no digest; that the source answered intact is what counts.
    assert {event.verified_blocks for event in moved} == {0}
    check(plane, engines)
