"""The main job on real engines: P to D, D to P, D to D; by hint and by plan; in the ledger."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.conservation import audited, engines_hold_what_the_ledger_says
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    FACTS,
    AnyEvent,
    Evicted,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    Transferred,
)
from kvferry.ledger.codec import encode
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.subjects import facts_subject

BLOCK = 32

pytestmark = pytest.mark.engine


class Fleet:
    def __init__(self, p0: EngineProcess, d0: EngineProcess, d1: EngineProcess) -> None:
        self.p0, self.d0, self.d1 = p0, d0, d1


@pytest.fixture(scope="module")
def fleet(plane: Plane, start_engine: StartEngine) -> Fleet:
    # One has nothing of the process that the others are forked from, no seed of hash() either.
    made = Fleet(start_engine("p0"), start_engine("d0", fresh=True), start_engine("d1"))
    joined(made.p0, made.d0, made.d1)
    return made


def test_prefill_to_decode_by_hint(fleet: Fleet, reference: EngineProcess, plane: Plane) -> None:
    text = prompt(1, 1000)
    first = fleet.p0.run("a-p", text, tokens=1)
    answer = fleet.d0.run("a-d", text, tokens=40, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 1000 // BLOCK * BLOCK
    assert answer.report["from"] == "p0"
    assert answer.tokens == reference.run("a", text, tokens=40).tokens


def test_a_reply_passed_on_as_it_is_serves_as_a_hint(
    fleet: Fleet, reference: EngineProcess
) -> None:
    """What a proxy that knows nothing of kvferry does with P's ``kv_transfer_params``."""
    text = prompt(12, 480)
    first = fleet.p0.run("v-p", text, tokens=1)
    assert set(first.params) == {"kvferry"}
    answer = fleet.d0.run("v-d", text, tokens=10, kvferry=first.params["kvferry"])
    assert (answer.report["pulled"], answer.report["from"]) == (480, "p0")
    assert answer.tokens == reference.run("v", text, tokens=10).tokens


def test_decode_to_prefill_by_hint_pulls_generated_tokens(
    fleet: Fleet, reference: EngineProcess
) -> None:
    text = prompt(2, 600)
    answer = fleet.d0.run("b-d", text, tokens=100)
    longer = text + answer.tokens + prompt(3, 50)
    first = fleet.p0.run("b-p", longer, tokens=1, kvferry={"hint": answer.hint})
    # The last generated token has no KV yet, so 699 tokens were exported in whole blocks.
    assert first.report["pulled"] == (600 + 100 - 1) // BLOCK * BLOCK
    assert first.report["local"] == 0
    assert first.tokens == reference.run("b", longer, tokens=1).tokens


def test_decode_to_decode_by_plan(fleet: Fleet, reference: EngineProcess, plane: Plane) -> None:
    text = prompt(4, 900)
    fleet.d0.run("c-d0", text, tokens=4)
    plane.wait_for(
        lambda seen: [r for r in of(seen, Retained) if r.request.startswith("c-d0")],
        "the offer of c-d0",
    )
    plane.wait_projected()
    answer = fleet.d1.run("c-d1", text, tokens=20)
    assert answer.report["from"] == "d0"
    assert answer.report["pulled"] == 900 // BLOCK * BLOCK
    assert answer.tokens == reference.run("c", text, tokens=20).tokens


def test_prefill_to_prefill_shares_what_is_common(fleet: Fleet, reference: EngineProcess) -> None:
    text = prompt(5, 1024)
    answer = fleet.d0.run("d-d", text, tokens=8)
    edited = text[:500] + prompt(6, 500)
    first = fleet.p0.run("d-p", edited, tokens=8, kvferry={"hint": answer.hint})
    assert first.report["pulled"] == 500 // BLOCK * BLOCK
    assert first.tokens == reference.run("d", edited, tokens=8).tokens


def test_a_fully_covered_prompt_is_answered(fleet: Fleet, reference: EngineProcess) -> None:
    text = prompt(7, 512)
    first = fleet.p0.run("e-p", text, tokens=1)
    answer = fleet.d1.run("e-d", text, tokens=30, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 512
    assert answer.tokens == reference.run("e", text, tokens=30).tokens


def test_a_hint_serves_several_readers(fleet: Fleet, reference: EngineProcess) -> None:
    text = prompt(8, 640)
    first = fleet.p0.run("f-p", text, tokens=1)
    expected = reference.run("f", text, tokens=10).tokens
    for engine in (fleet.d0, fleet.d1):
        answer = engine.run(f"f-{engine.name}", text, tokens=10, kvferry={"hint": first.hint})
        assert answer.report["pulled"] == 640
        assert answer.tokens == expected


def test_siblings_load_once(fleet: Fleet, reference: EngineProcess, plane: Plane) -> None:
    text = prompt(9, 1500)
    first = fleet.p0.run("g-p", text, tokens=1)
    for i in range(3):
        fleet.d0.add(f"g-{i}", text, tokens=6, kvferry={"hint": first.hint})
    answers = [fleet.d0.answer(f"g-{i}") for i in range(3)]
    expected = reference.run("g", text, tokens=6).tokens
    assert [a.tokens for a in answers] == [expected] * 3
    assert sum(a.report["pulled"] > 0 for a in answers) == 1
    assert sum(a.report["local"] > 0 for a in answers) == 2


def test_a_miss_says_why(fleet: Fleet) -> None:
    answer = fleet.d0.run("h", prompt(10, 300), tokens=2)
    assert answer.report["miss"] == "nothing_held"
    assert fleet.d0.run("h2", prompt(11, 20), tokens=2).report["miss"] == "too_short"


def test_blocks_return_and_counts_reconcile(fleet: Fleet, plane: Plane) -> None:
    """After the load of this module: nothing leaked, and both bookkeepings agree."""
    engines = (fleet.p0, fleet.d0, fleet.d1)
    for engine in engines:
        for probe in ("open", "requests", "pins", "waiting"):
            engine.until(probe, lambda left: left == 0)
    seen = plane.wait_for(
        lambda seen: len(of(seen, PinEnded)) >= len(of(seen, Transferred)), "all pins to end"
    )
    for ended in of(seen, RequestEnded):
        total = ended.local_tokens + ended.pulled_tokens + ended.computed_tokens
        assert total == ended.prompt_tokens
    wanted = {r.transfer for r in of(seen, Requested) if r.transfer}
    assert {t.transfer for t in of(seen, Transferred)} == wanted
    assert {p.transfer for p in of(seen, PinEnded, how="intact")} == wanted
    for engine in engines:
        mine = [
            r.event for r in seen if r.node == engine.name and isinstance(r.event, RequestEnded)
        ]
        sources = engine.ask("sources")
        by_source = "vllm:prompt_tokens_by_source"
        assert sources[f"{by_source}/external_kv_transfer"] == sum(r.pulled_tokens for r in mine)
        assert sources[f"{by_source}/local_cache_hit"] == sum(r.local_tokens for r in mine)
        assert sources[f"{by_source}/local_compute"] == sum(r.computed_tokens for r in mine)
        counts = engine.ask("outbox")
        for lane in counts.values():
            assert lane.dropped == 0
    produced = [e.event for e in plane.blocks() if isinstance(e.event, Produced)]
    assert produced
    assert {p.via for p in produced} == {"computed", "pulled"}
    assert of(seen, Retained)
    assert of(seen, Evicted, reason="superseded")


def test_replay_in_another_process_equals_the_live_state(fleet: Fleet, plane: Plane) -> None:
    seen = plane.events()
    done = plane.cli("replay", "--to", str(seen[-1].seq), "--digest")
    assert done.returncode == 0, done.stderr
    from kvferry.core.digest import digest

    state = plane.state()
    assert done.stdout.split()[-1] == digest(state) or state.position > seen[-1].seq


def test_engines_hold_what_the_ledger_says(fleet: Fleet, plane: Plane) -> None:
    """Both streams audited, each engine's word and what its pool would lend, while all are idle."""
    assert audited(plane).violations == ()
    report = engines_hold_what_the_ledger_says(plane, {"p0", "d0", "d1"})
    assert report.offers > 5
    assert report.lent_blocks > 100


def test_control_what_is_forged_or_lent_no_longer_is_found(fleet: Fleet, plane: Plane) -> None:
    """The last test of the module: it spoils the ledger in the name of d0 and of d1, and has p0's
    engine hold less and more than p0 has recorded."""
    asked = {"session": "kept", "turn": 1, "retain_ms": 60_000}
    fleet.p0.run("kept", prompt(7_777, 200), tokens=2, kvferry=asked)
    kept = {"tier": "hbm", "session": "kept"}
    (lease, *_) = of(
        plane.wait_for(lambda seen: of(seen, Retained, **kept), "a lease"), Retained, **kept
    )
    engines_hold_what_the_ledger_says(plane, {"p0", "d0", "d1"})
    fleet.p0.ask("lend_no_more", 1)
    assert fleet.p0.ask("drop_lease", lease.offer) == lease.count
    fleet.p0.ask("hold_unsaid", "unsaid.1L1", 3)
    seen = plane.events()
    offer = of(seen, Retained, tier="cache")[-1]
    last_of = {one.node: one for one in seen if one.lane == FACTS}
    gone = next(o for o in plane.space().offers.values() if o.node == "d1")
    lies: dict[str, AnyEvent] = {
        "d0": msgspec.structs.replace(offer, offer="forged.1", rev=1, count=3),
        "d1": Evicted(offer=gone.offer, rev=gone.rev + 1, keep=0, reason="reuse"),
    }

    async def forge(ledger: JetStreamLedger) -> None:
        for node, lie in lies.items():
            last = last_of[node]
            batch = Batch(
                space=fleet.p0.ask("space"),
                node=node,
                incarnation=last.incarnation,
                epoch=last.epoch,
                lane=FACTS,
                seq=last.lane_seq + 1,
                entries=(Entry(event=lie),),
            )
            subject = facts_subject(batch.space, node)
            await ledger.append(subject, encode(batch), message_id=f"forged-{node}")

    plane.use(forge)
    done = plane.cli("audit", "--live", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    found = {one["about"]: one["story"] for one in told["violations"]}
    assert all(one["invariant"] == "live" for one in told["violations"])
    assert "holds forged.1 (tier cache, 3 blocks, rev 1), but it does not" in found["forged.1"]
    assert f"d1 holds {gone.offer}" in found[gone.offer]
    assert "knows nothing" in found[gone.offer]
    assert "somebody else wrote in its name" in found["d0"]
    assert "somebody else wrote in its name" in found["d1"]
    (short,) = [story for story in found.values() if "would lend" in story]
    assert short.startswith("p0 has recorded more of ")
    assert f"of {lease.offer} (tier hbm), of which its engine holds 0" in found[lease.offer]
    assert "the engine of p0 holds 3 blocks by the lease unsaid.1L1" in found["unsaid.1L1"]
    assert told["live"]["agreed"] == []
    shown = plane.cli("audit", "--live")
    assert "0 of 3 nodes hold what the ledger says" in shown.stdout
    assert "BROKEN live" in shown.stdout
