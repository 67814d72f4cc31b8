"""What a TileRT node generates is kept, and a peer of the space pulls it, block for block.

TileRT's published server runs with an engine that plays back known rows; prefill is our senders
over a cache in vLLM's shapes; the ledger, the node and the peer's transfers are real.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.e2e.plane import of
from tests.tilert.nodes import WAIT_S
from tests.tilert.playback import write_rows
from tests.tilert.return_bench import SLOTS, Bench, compare
from tests.tilert.returning import Peer, Turn, drawn, facts_of

from kvferry.core.events import (
    Evicted,
    NodeClosed,
    PinEnded,
)


@pytest.mark.parametrize("form", ["fp8_ds_mla", "bf16"])
def test_a_peer_pulls_prompt_and_answer(benches: dict[str, Bench], form: str) -> None:
    bench = benches[form]
    turn = bench.turn(1, session="s1")
    rows = drawn(turn, seed=3)
    turn.run(bench.node, rows)
    event = bench.ended(turn)
    assert (event.kept_blocks, event.not_kept) == (3, ""), bench.node.tail()
    assert (event.prompt_tokens, event.output_tokens, event.outcome) == (150, 60, "length")
    kept = bench.retained(turn)
    assert (kept.tier, kept.count, kept.tail, kept.session) == ("host", 3, turn.chain[-1], "s1")
    result = bench.pull(turn)
    assert (result.ok, result.count, result.host_blocks) == (True, 3, 3), result
    assert result.verified_blocks == 3
    compare(bench, turn, rows)
    with pytest.raises(AssertionError):
        compare(bench, turn, drawn(turn, seed=4))


def test_a_prompt_that_ends_with_a_block_and_an_answer_that_ends_before_one(bench: Bench) -> None:
    turn = bench.turn(2, prompt=128, answer=65)
    rows = drawn(turn, seed=5)
    turn.run(bench.node, rows)
    assert bench.ended(turn).kept_blocks == 3  # 64 of the 65 tokens have a row.
    assert bench.pull(turn).count == 3
    compare(bench, turn, rows)
    assert bench.not_kept(bench.turn(3, prompt=128, answer=64)) == "nothing_new"


def test_the_same_words_again_take_no_room(bench: Bench) -> None:
    first = bench.turn(4)
    assert bench.kept(first) == 3
    again = Turn(bench.prefill, first.prompt, first.answer)
    assert bench.kept(again) == 3
    longer = Turn(bench.prefill, first.prompt, [*first.answer, *range(64)])
    assert bench.kept(longer) == 4
    assert bench.pull(longer).count == 4
    seen = bench.plane.wait_for(
        lambda found: of(found, Evicted, offer=bench.retained(again).offer), "it is superseded"
    )
    assert {e.reason for e in of(seen, Evicted, offer=bench.retained(again).offer)} == {
        "superseded"
    }


def test_what_was_not_used_for_longest_gives_way_and_is_not_granted(bench: Bench) -> None:
    turns = [bench.turn(seed) for seed in (10, 11, 12)]
    for turn in turns:
        assert bench.kept(turn) == 3  # Of seven slots.
    first = bench.retained(turns[0]).offer
    seen = bench.plane.wait_for(
        lambda found: [e for e in of(found, Evicted, offer=first) if e.keep < 2], "it gave way"
    )
    assert {e.reason for e in of(seen, Evicted, offer=first)} == {"pressure"}
    assert bench.pull(turns[2]).count == 3
    refused = bench.pull(turns[0])
    assert refused.count < 3
    whole = bench.turn(13, prompt=64 * SLOTS + 1, answer=64)
    assert bench.not_kept(whole) == "no_room"
    assert bench.pull(turns[2]).count == 3  # Nothing was given up for it.


def test_rows_that_come_too_late_hold_the_answer_up_no_longer_than_the_bound(bench: Bench) -> None:
    slow = bench.node.folder / "slow"
    slow.touch()
    late = bench.turn(20)
    try:
        assert bench.not_kept(late) == "too_slow"
    finally:
        slow.unlink()
    assert bench.kept(bench.turn(21)) == 3
    assert bench.pull(late).ok is False


def test_an_aborted_generation_is_kept_as_far_as_it_came(bench: Bench) -> None:
    turn = bench.turn(30, prompt=127, answer=40)
    write_rows(bench.node.folder, drawn(turn, seed=1), turn.answer[1:])
    bench.node.pause()
    try:
        turn.send(bench.node)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(turn.decode, bench.node)
            bench.node.wait_for(bench.node.decoding, "the generation")
            cancelled = httpx.post(
                f"{bench.node.url}/pd/cancel",
                json={"rid": turn.rid},
                timeout=WAIT_S,
                trust_env=False,
            )
            assert cancelled.status_code == 200
            made = asked.result().json()["token_ids"]
    finally:
        bench.node.resume()
    event = bench.ended(turn)
    assert event.outcome == "aborted"
    assert event.output_tokens == len(made)
    # The first token has a row once the second was made, and fills the prompt's last block.
    assert (event.kept_blocks, event.not_kept) == ((2, "") if len(made) > 1 else (0, "nothing_new"))


def test_an_engine_that_fails_answers_as_without_us(bench: Bench) -> None:
    fail = bench.node.folder / "fail"
    turn = bench.turn(31)
    fail.touch()
    try:
        turn.send(bench.node)
        answer = turn.decode(bench.node)
    finally:
        fail.unlink()
    assert answer.status_code == 500
    assert "as the test wants it" in answer.json()["error"]
    assert bench.ended(turn).not_kept == "decode_failed"
    assert bench.kept(bench.turn(32)) == 3


def test_what_cannot_be_said_to_be_of_this_space_is_not_kept(bench: Bench) -> None:
    assert bench.kept(bench.turn(40)) == 3
    cases = {
        "wrong_space": facts_of(bench.prefill, model="other@2"),
        "bad_key": facts_of(bench.prefill, key="hex:" + "00" * 32),
        "no_origin": None,
    }
    for number, (why, facts) in enumerate(cases.items()):
        turn = bench.turn(41 + number)
        turn.facts = facts
        assert bench.not_kept(turn) == why
        assert bench.pull(turn).ok is False


def test_tenants_share_nothing(bench: Bench) -> None:
    mine = bench.turn(50, salt="mine")
    theirs = Turn(bench.prefill, mine.prompt, mine.answer, salt="theirs")
    assert bench.kept(mine) == 3
    assert bench.pull(mine).count == 3
    assert set(mine.chain).isdisjoint(theirs.chain)
    assert bench.pull(theirs).ok is False
    bare = Turn(bench.prefill, mine.prompt, mine.answer)
    assert bench.pull(bare).ok is False
    short = bench.turn(51, prompt=40, answer=60, salt="mine")
    assert bench.not_kept(short) == "no_origin"


def test_the_last_turn_of_a_session_leaves_nothing(bench: Bench) -> None:
    first = bench.turn(60, session="over")
    assert bench.kept(first) == 3
    last = Turn(bench.prefill, first.prompt, first.answer, session="over", end=True)
    assert bench.not_kept(last) == "session_end"
    offer = bench.retained(first).offer
    seen = bench.plane.wait_for(lambda found: of(found, Evicted, offer=offer), "it ended")
    assert [(e.reason, e.keep) for e in of(seen, Evicted, offer=offer)] == [("session_end", 0)]
    assert bench.pull(first).ok is False


def test_a_peer_without_the_key_gets_nothing(bench: Bench) -> None:
    turn = bench.turn(70)
    assert bench.kept(turn) == 3
    stranger = Peer(facts_of(bench.prefill, key="hex:" + "00" * 32), bench.pages, "stranger")
    try:
        result = stranger.pull(bench.joined(), turn.chain)
    finally:
        stranger.close()
    assert (result.ok, result.stage) == (False, "pin")


def test_the_commands_tell_of_it(bench: Bench) -> None:
    turn = bench.turn(90, session="told")
    assert bench.kept(turn) == 3
    assert bench.pull(turn).count == 3
    bench.plane.wait_for(lambda found: of(found, PinEnded, how="intact"), "the pin's end")
    explained = bench.plane.cli("explain", turn.rid)
    assert "3 blocks kept" in explained.stdout, explained
    status = bench.plane.cli("status")
    assert bench.name in status.stdout, status
    audit = bench.plane.cli("audit", "--live")
    assert audit.returncode == 0, audit


def test_leases_end_with_the_process(benches: dict[str, Bench]) -> None:
    bench = benches["bf16"]
    bench.joined()
    bench.node.end()
    bench.plane.wait_for(
        lambda found: [
            r for r in found if r.node == bench.name and isinstance(r.event, NodeClosed)
        ],
        "its farewell",
    )
