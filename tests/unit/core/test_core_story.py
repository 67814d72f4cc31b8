"""Every event in one plain sentence."""

from __future__ import annotations

import pytest

from kvferry.core.events import (
    SCHEMAS,
    Checkpoint,
    Event,
    Evicted,
    Gap,
    Inventory,
    LeaderElected,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    PolicySet,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    SendBegan,
    SendEnded,
    SlotChanged,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.retention_settings import RetentionSettings
from kvferry.core.story import describe

STORIES: list[tuple[Event, str]] = [
    (
        Produced(request="r1", start=4, count=2, tail=b"", via="pulled"),
        "n0 has pulled 2 blocks from block 4 on for request r1",
    ),
    (
        Retained(
            offer="o", rev=2, tier="hbm", count=1, tail=b"", hashes=b"", ttl_ms=30_000, session="s"
        ),
        "n0 leases in GPU memory 1 block as o rev 2 for 30.0 s, session s",
    ),
    (
        Retained(offer="o", rev=1, tier="cache", count=1_200, tail=b"", hashes=b"", request="r1"),
        "n0 offers 1,200 blocks as o rev 1 of request r1",
    ),
    (
        Evicted(offer="o", rev=2, keep=0, reason="reuse", count=20),
        "n0 no longer offers o, 20 blocks gone: the engine needed the memory",
    ),
    (
        Evicted(offer="o", rev=2, keep=3, reason="superseded", superseded_by="o2"),
        "n0 offers only the first 3 blocks of o from now on: a longer run covers it: o2",
    ),
    (
        Evicted(offer="", rev=0, keep=0, reason="reuse", count=9),
        "n0's engine dropped 9 cached blocks: the engine needed the memory",
    ),
    (
        Requested(
            request="r1",
            transfer="t1",
            source="d0",
            wanted=130,
            granted=127,
            backend="tcp",
            basis="hint",
            predicted_ms=31,
            recompute_ms=790,
            local_tokens=16,
        ),
        "n0, request r1: pulls 127 of 130 blocks from d0 by hint over tcp, predicted 31 ms "
        "against 790 ms to recompute, 16 tokens local, transfer t1",
    ),
    (
        Requested(request="r1", wanted=3, miss="diverged@512"),
        "n0, request r1: nothing pulled (diverged@512), 3 blocks wanted",
    ),
    (
        Transferred(
            transfer="t1",
            request="r1",
            source="d0",
            start=0,
            count=127,
            tokens=2_032,
            bytes=8_323_072,
            backend="tcp",
            pin_ms=0.5,
            read_ms=28,
            settle_ms=1,
            total_ms=30,
            verified_blocks=9,
        ),
        "n0 got 127 blocks (2,032 tokens, 8.3 MB) from d0 over tcp in 30 ms: pin 0.5 ms, read "
        "28 ms, settle 1 ms, 9 blocks verified, transfer t1",
    ),
    (
        Transferred(
            transfer="t2",
            request="r2",
            source="d0",
            start=0,
            count=20,
            tokens=640,
            bytes=655_360,
            backend="peer_host",
            total_ms=3,
            host_blocks=13,
        ),
        "n0 got 20 blocks (640 tokens, 655.4 kB) from d0, 13 of them from its host tier, over "
        "peer_host in 3 ms: pin 0 ms, read 0 ms, settle 0 ms, transfer t2",
    ),
    (
        Transferred(
            transfer="t3",
            request="r3",
            source="n0",
            start=0,
            count=13,
            tokens=416,
            bytes=425_984,
            backend="host_copy",
            total_ms=2,
            host_blocks=13,
            verified_blocks=13,
        ),
        "n0 got 13 blocks (416 tokens, 426.0 kB) from its own host tier in 2 ms, 13 blocks "
        "verified, transfer t3",
    ),
    (
        TransferFailed(
            transfer="t1",
            request="r1",
            source="d0",
            stage="read",
            reason="deadline",
            detail="no bytes",
            fence="socket_closed",
            total_ms=10_000,
        ),
        "n0 got nothing from d0: deadline at read (no bytes) after 10.0 s, fenced by "
        "socket_closed; request r1 recomputes, transfer t1",
    ),
    (
        PinEnded(transfer="t1", target="p0", granted=127, how="void", held_ms=40),
        "n0 held 127 blocks for p0 during 40 ms: blocks were reused meanwhile, the target "
        "recomputes, transfer t1",
    ),
    (
        RequestEnded(
            request="r1",
            prompt_tokens=2_100,
            local_tokens=0,
            pulled_tokens=2_032,
            computed_tokens=68,
            output_tokens=20,
            ttft_ms=85,
            source="d0",
        ),
        "n0 ended request r1 (stop): 2,100 prompt tokens = 0 local + 2,032 pulled from d0 + 68 "
        "computed, 20 tokens out, first token after 85 ms",
    ),
    (
        RequestEnded(request="r1", prompt_tokens=1, computed_tokens=1, miss="too_short"),
        "n0 ended request r1 (stop): 1 prompt token = 0 local + 0 pulled + 1 computed, 0 tokens "
        "out; nothing pulled: too_short",
    ),
    (
        TurnEnded(
            request="x",
            prefill_node="p0",
            decode_node="d0",
            prompt_tokens=9,
            output_tokens=1,
            ttft_ms=85,
            total_ms=900,
            reuse="pulled=8 from=d0 31ms",
        ),
        "n0 answered turn x (ok) over p0 then d0: 9 prompt tokens, 1 token out, first token "
        "after 85 ms, all after 900 ms, pulled=8 from=d0 31ms",
    ),
    (
        NodeJoined(
            incarnation="i",
            epoch=2,
            address="127.0.0.1:7000",
            block_size=16,
            blocks=1_000,
            role="kv_both",
            warnings=("w",),
        ),
        "n0 joined as kv_both at 127.0.0.1:7000 with 1,000 blocks of 16 tokens, incarnation i "
        "epoch 2, 1 warning",
    ),
    (NodeClosed(incarnation="i"), "n0 stopped cleanly, incarnation i"),
    (Gap(lane="blocks", count=5), "n0 lost 5 events of its blocks lane: overflow"),
    (
        Inventory(part=1, last=True),
        "n0 lists what it holds, part 1: 0 offers, 0 open transfers, the last part: it replaces "
        "what was known",
    ),
    (
        LinkProbed(peer="d0", backend="tcp", gb_per_s=3.214, floor_ms=0.04),
        "n0 measured d0 over tcp: 3.21 GB/s, at least 0.04 ms",
    ),
    (
        LinkProbed(peer="d0", backend="tcp", gb_per_s=3.214, floor_ms=0.04, why="fastest"),
        "n0 reads from d0 over tcp from now on: fastest (3.21 GB/s, at least 0.04 ms)",
    ),
    (
        LinkProbed(peer="d0", backend="tcp", gb_per_s=0.0, floor_ms=0.0, why="the only one"),
        "n0 reads from d0 over tcp from now on: the only one",
    ),
    (LeaderElected(term=3, replica="c-1", cost="learned"), "coordinator c-1 leads, term 3"),
    (
        LeaderElected(term=3, replica="c-1", cost="off"),
        "coordinator c-1 leads, term 3, with cost off: plans move whatever is held",
    ),
    (
        NodeLeft(term=3, node="d0", incarnation="i", epoch=1, why="silent for 6.2 s"),
        "coordinator n0 gave up node d0, incarnation i epoch 1: silent for 6.2 s",
    ),
    (
        PolicySet(
            term=3, version=3, mode="on", retention=RetentionSettings(lease_ms=60_000), who="ana"
        ),
        "policy 3 for the whole space: leases last 60 s; set by ana",
    ),
    (
        PolicySet(term=3, version=4, mode="on", node="d0", unset=("lease_ms",)),
        "policy 4 for node d0: lease_ms as before it was set",
    ),
    (
        PolicySet(term=3, version=2, mode="paused", who="ana"),
        "policy 2: the whole space is paused by ana",
    ),
    (
        Checkpoint(term=3, position=900, digest="", fingerprint="", object="checkpoint-900"),
        "coordinator n0 stored the state at 900 as checkpoint-900",
    ),
    (
        SlotChanged(term=3, node="t0", change="registered", http="http://h:1", control="h:2"),
        "decode node t0 at http://h:1, receives at h:2 is named",
    ),
    (
        SlotChanged(term=3, node="t0", change="found", http="http://h:1", control="h:2", who="r"),
        "decode node t0 at http://h:1, receives at h:2 is named by r, to be seen idle before it is "
        "lent",
    ),
    (
        SlotChanged(term=3, node="t0", change="drained", who="ana"),
        "decode node t0 is out of the pool by ana",
    ),
    (SlotChanged(term=3, node="t0", change="opened"), "decode node t0 is back in the pool"),
    (
        SlotChanged(
            term=3,
            node="t0",
            change="granted",
            fence=7,
            holder="r.1",
            request="a",
            session="s",
            waited_ms=1_240.0,
        ),
        "slot of t0, fence 7: lent to router r.1 for request a after 1.24 s of waiting, session s",
    ),
    (
        SlotChanged(term=3, node="t0", change="confirmed", fence=7, request="a"),
        "slot of t0, fence 7: decoding of request a begins",
    ),
    (
        SlotChanged(
            term=3,
            node="t0",
            change="abandoned",
            fence=7,
            holder="r.1",
            request="a",
            why="decode answered 504",
        ),
        "slot of t0, fence 7: router r.1 lost sight of request a; it must be idle first (decode "
        "answered 504)",
    ),
    (
        SlotChanged(term=3, node="t0", change="replied", fence=7, request="a"),
        "slot of t0, fence 7: the lease of request a ends, decode has replied",
    ),
    (
        SlotChanged(term=3, node="t0", change="idle", fence=7, why="silent for 121 s"),
        "slot of t0, fence 7: the lease ends, its holder was silent and the node is idle (silent "
        "for 121 s)",
    ),
    (
        SendBegan(
            send="i.s1",
            request="r1",
            rid="turn-t1",
            target="10.0.0.7:5556",
            tokens=1_024,
            slot="t0",
            fence=7,
            external_id="turn",
        ),
        "n0 is to send the KV of request r1 (1,024 tokens) to t0 at 10.0.0.7:5556, fence 7, as "
        "turn-t1, send i.s1",
    ),
    (
        SendBegan(send="i.s1", request="r1", rid="r1", target="h:1", tokens=1),
        "n0 is to send the KV of request r1 (1 token) to a decode node at h:1, without a lease, as "
        "r1, send i.s1",
    ),
    (
        SendEnded(
            send="i.s1", request="r1", bytes=3_538_944, admitted_ms=2.5, total_ms=31.2, generation=4
        ),
        "n0 sent the KV of request r1, 3.5 MB in 31 ms, admitted after 2.5 ms, send i.s1",
    ),
    (
        SendEnded(
            send="i.s1",
            request="r1",
            stage="admission",
            reason="busy",
            detail="with 'x'",
            total_ms=3_004.0,
        ),
        "n0 did not send the KV of request r1: busy when the node was asked for admission (with "
        "'x') after 3004 ms, send i.s1",
    ),
]


@pytest.mark.parametrize(("event", "story"), STORIES)
def test_an_event_is_told_in_plain_words(event: Event, story: str) -> None:
    assert describe("n0", event) == story


def test_every_event_has_a_story_here() -> None:
    assert {type(event) for event, _ in STORIES} == {kind for _, kind in SCHEMAS.values()}


def test_a_line_break_in_a_detail_stays_in_the_line() -> None:
    event = PinEnded(transfer="t", target="p0", granted=0, how="new_word", detail="a\nb")
    assert "new_word (a b)" in describe("n0", event)
