"""Preemption on the decode engine while it pulls, and while others pull from it."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import BLOCK, StartEngine, free_again, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Evicted, Transferred

BLOCKS = 60
SMALL = {"kv_cache_memory_bytes": BLOCKS * BLOCK * 1024, "max_model_len": 1024}
AT_ONCE = 12
LEASE_MS = 5_000
ASKED, ANSWERED, SAID = 130, 150, 40
"""Tokens: twelve prompts fit into the pool, twelve answers do not."""

pytestmark = pytest.mark.engine


class Fleet:
    def __init__(self, p0: EngineProcess, d0: EngineProcess) -> None:
        self.p0, self.d0 = p0, d0


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine) -> Fleet:
    # Leases on the decode engine too, so that they stand in preemption's way.
    lends = {"lease_budget": 0.5, "lease_ms": LEASE_MS}
    made = Fleet(start_engine("p0"), start_engine("d0", connector=lends, **SMALL))
    joined(made.p0, made.d0)
    made.d0.ask("watch")
    return made


def test_preempted_requests_answer_the_same(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    start = fleet.d0.ask("free_blocks")
    texts = [prompt(40_000 + n, ASKED) for n in range(AT_ONCE)]
    for n, text in enumerate(texts):
        fleet.p0.add(f"p1-{n}", text, tokens=1)
        reference.add(f"r1-{n}", text, tokens=ANSWERED)
    firsts = [fleet.p0.answer(f"p1-{n}") for n in range(AT_ONCE)]
    for n, text in enumerate(texts):
        asked = {"hint": firsts[n].hint, "handover": n % 3 == 0}
        fleet.d0.add(f"d1-{n}", text, tokens=ANSWERED, kvferry=asked)
    # The second turn of whoever is answered first pulls from d0 in the midst of it.
    seconds = {}
    for n, text in enumerate(texts):
        answer = fleet.d0.answer(f"d1-{n}")
        assert answer.tokens == reference.answer(f"r1-{n}").tokens
        seconds[n] = text + answer.tokens + prompt(50_000 + n, SAID)
        fleet.p0.add(f"p2-{n}", seconds[n], tokens=4, kvferry={"hint": answer.hint})
    for n, text in seconds.items():
        reference.add(f"r2-{n}", text, tokens=4)
    for n in seconds:
        assert fleet.p0.answer(f"p2-{n}").tokens == reference.answer(f"r2-{n}").tokens
    assert fleet.d0.ask("waits").preempted > 0, "the pool was large enough after all"
    assert fleet.d0.ask("waits").in_the_way == 0
    free_again(fleet.d0, start)
    facts = check(plane, (fleet.p0, fleet.d0))
    pulled = of(facts, Transferred)
    assert {t.source for t in pulled} == {"p0", "d0"}
    assert of(facts, Evicted, reason="reuse")


def test_aborts_among_preempted_requests_leave_nothing(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    start = fleet.d0.ask("free_blocks")
    texts = [prompt(60_000 + n, ASKED) for n in range(AT_ONCE)]
    before = fleet.d0.ask("waits").preempted
    for n, text in enumerate(texts):
        fleet.p0.add(f"q1-{n}", text, tokens=1)
    hints = [fleet.p0.answer(f"q1-{n}").hint for n in range(AT_ONCE)]
    for n, text in enumerate(texts):
        fleet.d0.add(f"e1-{n}", text, tokens=ANSWERED, kvferry={"hint": hints[n]})
    fleet.d0.until("waits", lambda waits: waits.preempted > before)
    for n in range(0, AT_ONCE, 2):
        fleet.d0.abort(f"e1-{n}")
    for n in range(1, AT_ONCE, 2):
        reference.add(f"s1-{n}", texts[n], tokens=ANSWERED)
    for n in range(1, AT_ONCE, 2):
        expected = reference.answer(f"s1-{n}").tokens
        assert fleet.d0.answer(f"e1-{n}").tokens == expected
    fleet.d0.until("requests", lambda count: count == 0)
    free_again(fleet.d0, start)
    check(plane, (fleet.p0, fleet.d0))
