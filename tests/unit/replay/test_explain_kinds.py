"""The stories of a session, a transfer and a block, word for word; and ids that nobody knows."""

from __future__ import annotations

import pytest
from tests.unit.replay.dated import TALK, DatedLog, computed, kept, written
from tests.unit.replay.writer import Records

from kvferry.core.events import (
    Evicted,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Transferred,
    TurnEnded,
)
from kvferry.ids import ROUTER_SPACE, short_hashes
from kvferry.replay.explain import explain


async def conversation() -> DatedLog:
    """D answers turn 1; for turn 2 P pulls it, computes the rest and offers it; D loses its own."""
    log = DatedLog()
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    await records.join("r0", ROUTER_SPACE)
    log.now_s = 1.0
    made = Produced(
        request="turn-1", start=0, count=64, tail=TALK[63], hashes=short_hashes(TALK, 8)
    )
    await records.write("d0", made, lane="blocks")
    log.now_s = 1.1
    await records.write("d0", computed("turn-1", 1_000, session="s-1"))
    await records.write("d0", kept("d0.1", 64, "turn-1", "s-1"))
    log.now_s = 10.0
    await records.write(
        "p0",
        Requested(
            request="turn-2-p", transfer="p0.7", source="d0", wanted=66, granted=64, basis="hint",
            predicted_ms=12.0, recompute_ms=90.0, session="s-1",
        ),
    )  # fmt: skip
    log.now_s = 10.1
    await records.write(
        "d0", PinEnded(transfer="p0.7", target="p0", granted=64, how="intact", held_ms=22.0)
    )
    await records.write(
        "p0",
        Transferred(
            transfer="p0.7", request="turn-2-p", source="d0", start=0, count=64, tokens=1_024,
            bytes=64 * 4_096, backend="tcp", pin_ms=2.0, read_ms=20.0, settle_ms=1.0,
            total_ms=23.0,
        ),
    )  # fmt: skip
    await records.write("p0", kept("p0.1", 64, "turn-2-p", "s-1"))
    log.now_s = 10.4
    await records.write(
        "p0",
        RequestEnded(
            request="turn-2-p", session="s-1", prompt_tokens=1_060, pulled_tokens=1_024,
            computed_tokens=36, output_tokens=8, source="d0", ttft_ms=60.0, pull_ms=23.0,
            prefill_ms=30.0, total_ms=300.0,
        ),
    )  # fmt: skip
    log.now_s = 10.5
    turn = TurnEnded(
        request="rt-2", session="s-1", prefill_node="p0", prefill_request="turn-2-p",
        prompt_tokens=1_060, output_tokens=8, ttft_ms=63.0, total_ms=310.0,
    )  # fmt: skip
    await records.write("r0", turn, space=ROUTER_SPACE)
    log.now_s = 12.0
    await records.write("d0", Evicted(offer="d0.1", rev=2, keep=0, reason="reuse", count=64))
    log.now_s = 13.0
    await records.write("p0", computed("turn-of-another", 50, "nothing_held", session="s-2"))
    return log


MADE = """\
   1.0 s  d0 has computed 64 blocks from block 0 on for request turn-1
"""
ENDED = """\
   1.1 s  d0 ended request turn-1 (stop): 1,000 prompt tokens = 0 local + 0 pulled + \
1,000 computed, 8 tokens out, first token after 120 ms
"""
MOVED = """\
   1.1 s  d0 offers 64 blocks as d0.1 rev 1 of request turn-1, session s-1
  10.0 s  p0, request turn-2-p: pulls 64 of 66 blocks from d0 by hint, predicted 12 ms against \
90 ms to recompute, transfer p0.7
  10.1 s  d0 held 64 blocks for p0 during 22 ms: the blocks were as promised, transfer p0.7
  10.1 s  p0 got 64 blocks (1,024 tokens, 262.1 kB) from d0 over tcp in 23 ms: pin 2 ms, read \
20 ms, settle 1 ms, transfer p0.7
  10.1 s  p0 offers 64 blocks as p0.1 rev 1 of request turn-2-p, session s-1
"""
ANSWERED = """\
  10.4 s  p0 ended request turn-2-p (stop): 1,060 prompt tokens = 0 local + 1,024 pulled from d0 \
+ 36 computed, 8 tokens out, first token after 60 ms
  10.5 s  r0 answered turn rt-2 (ok) over p0: 1,060 prompt tokens, 8 tokens out, first token \
after 63 ms, all after 310 ms
"""
LOST = """\
  12.0 s  d0 no longer offers d0.1, 64 blocks gone: the engine needed the memory
"""
SESSION = f"""{MADE}{ENDED}{MOVED}{ANSWERED}{LOST}
session s-1: 1 turn, 2 requests on d0 and p0 in 9.4 s; 2,060 prompt tokens = 0 local + \
1,024 pulled + 1,036 computed; 1 transfer used, 0 failed
"""
BLOCK = f"""{MADE}{MOVED}{LOST}
block 63 of its chain (tokens 1,008 to 1,023); computed by d0; moved 1 time: d0 to p0 (transfer \
p0.7); d0 kept it for 10.9 s as d0.1, until the engine needed the memory; offered now by p0 (p0.1)
"""


async def test_a_session_is_told_turn_by_turn() -> None:
    story = await explain(await conversation(), "s-1")
    assert written(story) == SESSION
    assert story.kind == "session"
    assert story.requests == ("rt-2", "turn-1", "turn-2-p")
    assert story.transfers == ("p0.7",)
    assert [(one.of, one.what, one.ms) for one in story.parts] == [
        ("turn-1", "computing the prompt", 110.0),
        ("turn-1", "to the first token", 120.0),
        ("turn-1", "to the end", 400.0),
        ("p0.7", "pinned for p0", 22.0),
        ("turn-2-p", "pin on d0", 2.0),
        ("turn-2-p", "read over tcp", 20.0),
        ("turn-2-p", "settling", 1.0),
        ("turn-2-p", "the transfer in all", 23.0),
        ("turn-2-p", "pulling", 23.0),
        ("turn-2-p", "computing the prompt", 30.0),
        ("turn-2-p", "to the first token", 60.0),
        ("turn-2-p", "to the end", 300.0),
        ("rt-2", "to the client's first token", 63.0),
        ("rt-2", "to the client's last token", 310.0),
    ]
    other = await explain(await conversation(), "s-2")
    assert other.requests == ("turn-of-another",)
    assert "requests that pulled nothing: 1 nothing_held" in other.conclusion


async def test_a_transfer_is_told_with_its_prediction_and_its_sources_word() -> None:
    story = await explain(await conversation(), "p0.7")
    assert story.kind == "transfer"
    assert story.requests == ("turn-2-p",)
    assert story.conclusion == (
        "transfer p0.7: p0 began to pull 64 of 66 blocks from d0 by hint for request turn-2-p "
        "(predicted: 12 ms to move against 90 ms to compute); d0 held them for 22 ms and says: "
        "the blocks were as promised; 64 blocks arrived over tcp in 23 ms and were used"
    )


@pytest.mark.parametrize("asked", [TALK[63].hex(), TALK[63].hex()[:16], TALK[63].hex().upper()])
async def test_a_block_is_told_by_its_full_and_by_its_short_hash(asked: str) -> None:
    story = await explain(await conversation(), asked)
    assert written(story) == BLOCK
    assert story.kind == "block"
    assert story.requests == ("turn-1", "turn-2-p")


async def test_a_sampled_block_within_a_run_is_found_and_one_between_is_not() -> None:
    log = await conversation()
    inner = await explain(log, TALK[7].hex())
    assert inner.conclusion.startswith("block 7 of its chain (tokens 112 to 127)")
    assert not (await explain(log, TALK[6].hex())).found


async def test_a_runs_last_block_is_found_by_all_of_its_hash() -> None:
    log = DatedLog()
    records = Records(log)
    await records.join("d0")
    await records.write("d0", kept("d0.1", 12, "turn-1"))
    assert (await explain(log, TALK[11].hex())).found
    assert (await explain(log, TALK[11].hex()[:16])).found
    # A hash that only begins like it is another block.
    assert not (await explain(log, TALK[11].hex()[:16] + "0" * 48)).found


async def test_unknown_ids_suggest_near_ones_of_every_kind() -> None:
    log = await conversation()
    near = await explain(log, "turn-2-q")
    assert near.near[0] == "turn-2-p"
    nothing_like_it = await explain(log, "zz")
    assert "turn-1" in nothing_like_it.near
    assert nothing_like_it.near_sessions == ("s-2", "s-1")
    assert nothing_like_it.near_transfers == ("p0.7",)
    assert (await explain(log, "p0.9")).near_transfers == ("p0.7",)
