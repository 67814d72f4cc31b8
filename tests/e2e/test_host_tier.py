"""Blocks that a small engine loses are kept in host memory, loaded again, and read by peers."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from tests.e2e.conftest import BLOCK, StartEngine, free_again, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, Recorded, of

from kvferry.core.events import Evicted, PinEnded, Requested, Retained, TransferFailed, Transferred

BLOCKS = 60
BLOCK_BYTES = BLOCK * 1024
SMALL = {"kv_cache_memory_bytes": BLOCKS * BLOCK_BYTES, "max_model_len": 1024}
HOSTED = {"host_tier_bytes": 2_000 * BLOCK_BYTES}
FEW = 100
"""Slots of a tier that is soon full."""
FIRST, ANSWERED, SAID = 400, 40, 50
"""Tokens of a first prompt, of its answer, and of what the user says next."""
KEPT = (FIRST + ANSWERED - 1) // BLOCK
"""Full blocks that a first turn leaves behind."""

pytestmark = pytest.mark.engine


class Fleet(NamedTuple):
    hosted: EngineProcess
    bare: EngineProcess
    """As small, and without a host tier."""
    peer: EngineProcess
    over_tcp: EngineProcess


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine) -> Fleet:
    made = Fleet(
        start_engine("hosted", connector=HOSTED, fresh=True, **SMALL),
        start_engine("bare", **SMALL),
        start_engine("peer", connector={"backends": ["peer_host"]}),
        start_engine("over-tcp", connector={"backends": ["tcp"]}),
    )
    joined(*made)
    return made


class Talk:
    """A conversation whose first turn an engine had and whose blocks it has lost since."""

    def __init__(self, engine: EngineProcess, name: str, seed: int) -> None:
        self.name = name
        self.first_prompt = prompt(seed, FIRST)
        self.first = engine.run(f"{name}-1", self.first_prompt, tokens=ANSWERED)
        self.next_prompt = self.first_prompt + self.first.tokens + prompt(seed + 1, SAID)
        # As many blocks as the pool has, and more.
        self.crowd = [prompt(seed * 100 + nth, 8 * BLOCK) for nth in range(BLOCKS // 8 + 1)]
        for nth, text in enumerate(self.crowd):
            engine.run(f"{name}-crowd-{nth}", text, tokens=6)
            # Its steps are over in no time, unlike those of an engine that has work.
            engine.until("host_copying", lambda copying: not copying)

    def goes_on(self, engine: EngineProcess, suffix: str = "2") -> Answer:
        hint = {"hint": self.first.hint}
        return engine.run(f"{self.name}-{suffix}", self.next_prompt, tokens=16, kvferry=hint)

    def expected(self, reference: EngineProcess) -> list[int]:
        return reference.run(f"{self.name}-ref", self.next_prompt, tokens=16).tokens


def moves(plane: Plane, name: str) -> list[Transferred]:
    """The transfers of the requests whose name begins so, once there is one."""

    def ours(seen: list[Recorded]) -> list[Transferred]:
        return [t for t in of(seen, Transferred) if t.request.startswith(name)]

    return ours(plane.wait_for(ours, f"a transfer of {name}"))


def test_the_second_turn_comes_from_the_host_tier(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    talk = Talk(fleet.hosted, "own", 1)
    answer = talk.goes_on(fleet.hosted)
    assert answer.tokens == talk.expected(reference)
    assert (answer.report["pulled"], answer.report["from"]) == (KEPT * BLOCK, "hosted")
    (moved,) = moves(plane, "own-2")
    assert (moved.backend, moved.source, moved.start) == ("host_copy", "hosted", 0)
    assert (moved.count, moved.host_blocks, moved.verified_blocks) == (KEPT, KEPT, KEPT)
    assert moved.bytes == KEPT * BLOCK_BYTES
    (wanted,) = of(plane.events(), Requested, transfer=moved.transfer)
    assert wanted.basis == "host"
    kept = of(plane.events(), Retained, tier="host")
    assert KEPT in {run.count for run in kept}


def test_without_a_host_tier_the_same_turn_is_computed_again(
    fleet: Fleet, reference: EngineProcess
) -> None:
    """The control: it is the host tier that has the blocks, nobody else."""
    talk = Talk(fleet.bare, "gone", 3)
    answer = talk.goes_on(fleet.bare)
    assert answer.tokens == talk.expected(reference)
    assert answer.report["pulled"] == 0
    assert answer.report["computed"] == len(talk.next_prompt)


@pytest.mark.parametrize(("target", "backend"), [("peer", "peer_host"), ("over_tcp", "tcp")])
def test_a_peer_reads_from_the_host_tier(
    fleet: Fleet, reference: EngineProcess, plane: Plane, target: str, backend: str
) -> None:
    engine: EngineProcess = getattr(fleet, target)
    talk = Talk(fleet.hosted, f"lent-{target}", 5 if target == "peer" else 7)
    answer = talk.goes_on(engine)
    assert answer.tokens == talk.expected(reference)
    assert (answer.report["pulled"], answer.report["from"]) == (KEPT * BLOCK, "hosted")
    (moved,) = moves(plane, f"lent-{target}-2")
    assert (moved.backend, moved.count, moved.host_blocks) == (backend, KEPT, KEPT)


def test_what_the_cache_still_has_is_read_from_there_and_the_rest_from_the_host_tier(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    talk = Talk(fleet.hosted, "both", 9)
    again = fleet.hosted.run("both-head", talk.first_prompt[: 4 * BLOCK + 1], tokens=2)
    assert again.report["pulled"] == 4 * BLOCK
    answer = talk.goes_on(fleet.peer)
    assert answer.tokens == talk.expected(reference)
    assert answer.report["pulled"] == KEPT * BLOCK
    (moved,) = moves(plane, "both-2")
    assert (moved.count, moved.host_blocks) == (KEPT, KEPT - 4)


def test_a_damaged_block_is_found_and_computed_again(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    talk = Talk(fleet.hosted, "hurt", 11)
    assert fleet.hosted.ask("damage_host", talk.first_prompt, 3)
    answer = talk.goes_on(fleet.hosted)
    assert answer.tokens == talk.expected(reference)
    assert answer.report["pulled"] == 0
    seen = plane.wait_for(
        lambda seen: [f for f in of(seen, TransferFailed) if f.request.startswith("hurt-2")],
        "the failure of the load",
    )
    (failed,) = [f for f in of(seen, TransferFailed) if f.request.startswith("hurt-2")]
    assert (failed.stage, failed.reason, failed.source) == ("read", "digest", "hosted")
    plane.wait_for(
        lambda seen: of(seen, Evicted, reason="damaged"),
        "the end of the damaged blocks, which the engine's next step tells",
    )
    assert not fleet.hosted.ask("damage_host", talk.first_prompt, 3), "it is not kept"
    assert talk.goes_on(fleet.hosted, "3").tokens == answer.tokens


@pytest.fixture(scope="module")
def careless(start_engine: StartEngine) -> EngineProcess:
    """Verifies nothing, and has a small host tier."""
    small = {"host_tier_bytes": FEW * BLOCK_BYTES}
    made = start_engine("careless", connector={**small, "verify": "off"}, **SMALL)
    joined(made)
    return made


def test_a_damaged_block_without_a_digest_changes_the_answer(
    careless: EngineProcess, reference: EngineProcess
) -> None:
    """The control: this damage does harm, and it is the digest that protects."""
    talk = Talk(careless, "harm", 13)
    for block in range(KEPT):
        assert careless.ask("damage_host", talk.first_prompt + talk.first.tokens, block)
    answer = talk.goes_on(careless)
    assert answer.report["pulled"] == KEPT * BLOCK
    assert answer.tokens != talk.expected(reference)


def test_a_tier_holds_no_more_than_it_may_and_a_reset_ends_it(
    careless: EngineProcess, reference: EngineProcess, plane: Plane
) -> None:
    talks = [Talk(careless, f"many-{nth}", 20 + 2 * nth) for nth in range(4)]
    assert FEW - KEPT < careless.ask("host") <= FEW
    answers = [talk.goes_on(careless) for talk in talks]
    assert [a.tokens for a in answers] == [talk.expected(reference) for talk in talks]
    # What it has room for it chooses itself, and what it chose is used.
    texts = [
        text for talk in talks for text in (talk.first_prompt + talk.first.tokens, *talk.crowd)
    ]
    chosen = [text for text in texts if careless.ask("in_host", text)]
    again = [careless.run(f"chosen-{nth}", [*text, 1], tokens=2) for nth, text in enumerate(chosen)]
    assert any(answer.report["pulled"] for answer in again)
    assert f"(room for {2_000 + FEW:,})" in plane.cli("status").stdout
    free_again(careless, BLOCKS - 1)
    assert careless.ask("reset")
    assert careless.ask("host") == 0
    anew = Talk(careless, "anew", 40)
    assert anew.goes_on(careless).tokens == anew.expected(reference)


def test_the_books_balance(fleet: Fleet, careless: EngineProcess, plane: Plane) -> None:
    facts = check(plane, (*fleet, careless))
    assert {p.how for p in of(facts, PinEnded) if p.granted} <= {"intact", "abort"}
    told = {r.offer for r in of(facts, Retained, tier="host")}
    ended = {e.offer for e in of(facts, Evicted, keep=0)}
    standing = {o.offer for o in plane.space().offers.values() if o.tier == "host"}
    assert standing == told - ended
    assert standing


def test_what_the_host_tier_lost_behind_the_ledger_is_found(fleet: Fleet, plane: Plane) -> None:
    """The last test of the module: the tier no longer has what was recorded; before it had."""
    run = max(
        (
            one
            for one in plane.space().offers.values()
            if (one.node, one.tier) == ("hosted", "host")
        ),
        key=lambda one: one.count,
    )
    left = fleet.hosted.ask("lose_host", run.offer, run.count - 1)
    done = plane.cli("audit", "--live", "--json")
    assert done.returncode == 1, done.stderr
    found = {one["about"]: one["story"] for one in json.loads(done.stdout)["violations"]}
    assert found[run.offer] == (
        f"hosted has recorded {run.count} blocks of {run.offer} (tier host), of which its host "
        f"tier has {left}"
    )
