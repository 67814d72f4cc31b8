"""A transfer's one outcome, from what its ranks said; and how a request tells of it."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import BLOCK, chain, loading, result, tracked

from kvferry.core.events import RequestEnded, TransferFailed, Transferred
from kvferry.node.pull.attempt import NOBODY_LISTENS
from kvferry.node.pull.choice import Chosen, Measured
from kvferry_connectors.vllm.outcomes import links_probed, outcome
from kvferry_connectors.vllm.report import log_line, reuse_text
from kvferry_connectors.vllm.tracked import Tracked


def settle(one: Tracked, *results: object) -> Transferred | TransferFailed:
    pull = one.pull or loading(one)
    one.results = list(results)
    return outcome(one, pull, block_size=BLOCK, verify="full")


def test_all_ranks_well() -> None:
    one = tracked("r", chain("a", 8))
    one.start_block = 2
    event = settle(
        one,
        result(0, count=6, bytes=600, verified_blocks=6, total_ms=5.0, read_ms=3.0),
        result(1, count=6, bytes=600, verified_blocks=4, total_ms=9.0, read_ms=7.0),
    )
    assert isinstance(event, Transferred)
    assert (event.start, event.count, event.tokens, event.bytes) == (2, 6, 6 * BLOCK, 1200)
    assert (event.verify, event.verified_blocks) == ("full", 4)
    assert event.read_ms == 7.0  # Of the slowest rank.
    assert (one.pulled_tokens, one.source) == (6 * BLOCK, "d0")


def test_the_shortest_rank_decides() -> None:
    one = tracked("r", chain("a", 8))
    event = settle(one, result(0, count=6), result(1, count=2))
    assert isinstance(event, Transferred)
    assert event.count == 2
    assert one.pulled_tokens == 2 * BLOCK


@pytest.mark.parametrize(
    ("stage", "reason", "miss"),
    [
        ("settle", "void", "transfer_failed"),
        ("read", "digest", "transfer_failed"),
        ("read", "unreachable", "transfer_failed"),
        ("read", "deadline", "transfer_failed"),
        ("pin", "unreachable", "peer_unreachable"),
    ],
)
def test_one_bad_rank_fails_the_whole_transfer(stage: str, reason: str, miss: str) -> None:
    one = tracked("r", chain("a", 8))
    bad = result(1, ok=False, stage=stage, reason=reason, detail="x" * 500, fence="socket_closed")
    event = settle(one, result(0, count=6), bad)
    assert isinstance(event, TransferFailed)
    assert (event.stage, event.reason, event.fence) == (stage, reason, "socket_closed")
    assert len(event.detail) == 200
    assert (one.pulled_tokens, one.miss) == (0, miss)
    assert one.computed_tokens == one.prompt_tokens


def test_a_cause_that_was_known_before_stays() -> None:
    one = tracked("r", chain("a", 8))
    loading(one).miss = "diverged@64"
    settle(one, result(0, ok=False, stage="pin", reason="refused"))
    assert one.miss == "diverged@64"


def test_a_source_where_nobody_listens_has_left() -> None:
    one = tracked("r", chain("a", 8))
    said = f"{NOBODY_LISTENS}: 127.0.0.1:9 cannot be reached"
    settle(one, result(0, ok=False, stage="pin", reason="unreachable", detail=said))
    assert one.miss == "node_left"


@pytest.mark.parametrize(
    ("said", "miss"),
    [
        ("incarnation: 127.0.0.1:9 lives as a, not b", "node_left"),
        ("not_held", "not_offered"),
        ("paused", "paused"),
        ("the source has 2 ranks, we have 1", "transfer_failed"),
    ],
)
def test_a_refused_pin_is_a_miss_of_its_own(said: str, miss: str) -> None:
    one = tracked("r", chain("a", 8))
    settle(one, result(0, ok=False, stage="pin", reason="refused", detail=said))
    assert one.miss == miss


def test_nothing_granted_is_a_refusal() -> None:
    one = tracked("r", chain("a", 8))
    event = settle(one, result(0, count=0))
    assert isinstance(event, TransferFailed)
    assert (event.stage, event.reason, one.miss) == ("pin", "refused", "not_offered")


@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (result(0, count=6), ("use", "aborted")),
        (result(0, ok=False, stage="read", reason="aborted"), ("use", "aborted")),
        (result(0, ok=False, stage="settle", reason="void"), ("settle", "void")),
    ],
)
def test_a_request_that_ended_meanwhile_uses_nothing(last: object, ends: tuple[str, str]) -> None:
    one = tracked("r", chain("a", 8))
    loading(one)
    one.finished = True
    event = settle(one, last)
    assert isinstance(event, TransferFailed)
    assert (event.stage, event.reason) == ends
    assert one.pulled_tokens == 0


def test_the_report_says_what_was_pulled_or_why_nothing() -> None:
    one = tracked("r", chain("a", 8), tokens=8 * BLOCK + 3)
    one.local_tokens = BLOCK
    settle(one, result(0, count=4))
    said = one.report("p0")
    assert (said["pulled"], said["from"], said["miss"]) == (4 * BLOCK, "d0", "")
    assert said["local"] + said["pulled"] + said["computed"] == said["prompt_tokens"]
    two = tracked("q", chain("b", 8))
    settle(two, result(0, ok=False, stage="settle", reason="void"))
    said = two.report("p0")
    assert (said["pulled"], said["from"], said["miss"]) == (0, "", "transfer_failed")


@pytest.mark.parametrize(
    ("pulled", "miss", "local", "text"),
    [
        (2039, "", 0, "pulled=2039 from=d0 31ms"),
        (2039, "diverged@2039", 32, "pulled=2039 from=d0 31ms"),
        (0, "diverged@1536", 0, "miss=diverged@1536"),
        (0, "bad_hint", 64, "miss=bad_hint"),
        (0, "local", 2048, "local=2048"),
        (0, "", 2048, "local=2048"),
        (0, "", 0, "miss=nothing_held"),
    ],
)
def test_the_one_phrase(pulled: int, miss: str, local: int, text: str) -> None:
    assert reuse_text(pulled, "d0", 31.2, miss, local) == text


def test_the_one_log_line() -> None:
    ended = RequestEnded(
        request="cmpl-1",
        external_id="ext",
        prompt_tokens=100,
        pulled_tokens=64,
        computed_tokens=36,
        output_tokens=7,
        source="d0",
        pull_ms=3.0,
    )
    assert log_line(ended) == (
        "kvferry request=cmpl-1 id=ext pulled=64 from=d0 3ms prompt=100 local=0 pulled=64 "
        "computed=36 output=7 stop"
    )


def test_what_ranks_measured_adds_up_and_the_chosen_backend_says_why() -> None:
    one = tracked("r", chain("a", 8))
    pull = loading(one)
    rates = (Measured("peer", 5.0, 0.1), Measured("tcp", 2.0, 0.4))
    chosen = Chosen("peer", "fastest of 2 measured", rates)
    other = Chosen("tcp", "fastest of 2 measured", (Measured("peer", 1.0, 0.3), rates[1]))
    one.results = [result(0, chosen=chosen), result(1, chosen=other)]
    peer, tcp = links_probed(one, pull)
    assert (peer.peer, peer.backend, peer.gb_per_s, peer.floor_ms) == ("d0", "peer", 6.0, 0.3)
    assert (tcp.backend, tcp.gb_per_s, tcp.floor_ms) == ("tcp", 4.0, 0.4)
    assert (peer.why, tcp.why) == ("fastest of 2 measured", "")


def test_a_rank_that_measured_stands_for_those_that_did_not() -> None:
    one = tracked("r", chain("a", 8))
    chosen = Chosen("tcp", "fastest of 1 measured", (Measured("tcp", 2.0, 0.4),))
    one.results = [result(0, chosen=chosen), result(1)]
    (tcp,) = links_probed(one, loading(one))
    assert tcp.gb_per_s == 4.0


def test_a_choice_without_a_measurement_is_recorded_and_no_choice_is_not() -> None:
    one = tracked("r", chain("a", 8))
    one.results = [result(0, chosen=Chosen("tcp", "the only one both have"))]
    (tcp,) = links_probed(one, loading(one))
    assert (tcp.backend, tcp.gb_per_s, tcp.why) == ("tcp", 0.0, "the only one both have")
    one.results = [result(0)]
    assert links_probed(one, loading(one)) == []
