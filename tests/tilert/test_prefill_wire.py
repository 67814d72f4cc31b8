"""Our senders against TileRT's published receive server, over real NIXL on loopback.

The engines' KV caches are recorded shapes with random content (:mod:`tests.unit.tilert.caches`): a
model with TileRT's indexer cannot run without a GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.tilert.holding import Holder
from tests.tilert.nodes import DecodeNode, StartNode
from tests.tilert.prefill import Prefill, close_to, decode, injected_as, prefill
from tests.unit.tilert.caches import EngineCache
from tests.unit.tilert.test_staging import Careless

from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, RowFormat, find

ROOM = 256
"""Tokens for which the nodes have room."""
TOKENS = 150
IDS = [5, 0, 2]


def cache(name: str = "dsv32", form: RowFormat = FP8_DS_MLA, seed: int = 1) -> EngineCache:
    return EngineCache(find(name), form, blocks=6, seed=seed, interleaved=True)


@dataclass
class Nodes:
    """``a`` and ``b`` serve dsv32 in fp8_ds_mla, ``bf16`` in bfloat16, ``glm5`` another model."""

    a: DecodeNode
    b: DecodeNode
    bf16: DecodeNode
    glm5: DecodeNode
    used: dict[str, int]

    def decoded(self, name: str, rid: str) -> dict[str, object]:
        """What the node's engine was given for this request."""
        node: DecodeNode = getattr(self, name)
        answer = decode(node, rid)
        assert answer.status_code == 200, answer.text
        number = self.used.get(name, 0)
        self.used[name] = number + 1
        return node.injected(number)


@pytest.fixture(scope="module")
def nodes(decode_node: StartNode) -> Nodes:
    def start(**options: object) -> DecodeNode:
        spy = {"tokens": [1, 2]}
        return decode_node(wait=False, max_seq_len=ROOM, spy=spy, **options)

    started = (
        start(),
        start(),
        start(dtype="bfloat16"),
        start(model="glm5"),
    )
    for node in started:
        node.wait_ready()
    return Nodes(*started, used={})


@pytest.fixture(scope="module")
def fp8(nodes: Nodes) -> Iterator[Prefill]:
    with prefill(cache()) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "model", "form"),
    [
        ("a", "dsv32", FP8_DS_MLA),
        ("bf16", "dsv32", BF16),
        ("glm5", "glm5", FP8_DS_MLA),
    ],
)
def test_the_nodes_engine_is_given_the_prompt(
    nodes: Nodes, name: str, model: str, form: RowFormat
) -> None:
    held = cache(model, form)
    with prefill(held) as engine:
        outcome = engine.send(f"whole-{name}", getattr(nodes, name), IDS, TOKENS)
        assert (outcome.state, outcome.reason) == ("sent", "")
        shape = fit(held.profile, held.config).shape(TOKENS)
        each = sum(shape.sent(plane) for plane in shape.planes)
        assert outcome.bytes == held.profile.layers * each
        got = nodes.decoded(name, f"whole-{name}")
    assert (got["seq_len"], got["last_prompt_token"], got["sampling"]) == (
        TOKENS,
        7,
        {"temperature": 0.0},
    )
    layers = got["layers"]
    assert isinstance(layers, list)
    assert injected_as(layers, held, IDS, TOKENS)
    assert not injected_as(layers, held, [IDS[1], IDS[0], IDS[2]], TOKENS)
    assert not injected_as(layers, cache(model, form, seed=2), IDS, TOKENS)


def test_the_comparison_sees_one_wrong_row(nodes: Nodes) -> None:
    held = cache()
    layers = [held.expected(n, IDS, TOKENS) for n in range(61)]
    assert close_to(layers[60][1], held.expected(60, IDS, TOKENS)[1])
    layers[60][1][TOKENS - 1, 3] += 1
    assert not close_to(layers[60][1], held.expected(60, IDS, TOKENS)[1])


def test_two_engine_ranks_send_half_of_the_layers_each(nodes: Nodes) -> None:
    held = cache(seed=3)
    with prefill(held, rank=0, ranks=2) as one, prefill(held, rank=1, ranks=2) as other:
        outcomes = [rank.send("halves", nodes.a, IDS, TOKENS) for rank in (one, other)]
        assert [outcome.state for outcome in outcomes] == ["sent", "sent"]
        assert outcomes[0].bytes * 30 == outcomes[1].bytes * 31  # 31 and 30 layers of 61.
        got = nodes.decoded("a", "halves")
    layers = got["layers"]
    assert isinstance(layers, list)
    assert injected_as(layers, held, IDS, TOKENS)


@pytest.mark.parametrize("owned", [True, False])
def test_a_send_that_waits_for_its_node_is_not_overwritten(nodes: Nodes, owned: bool) -> None:
    """Two claimed requests to two nodes, of which the first is busy for a while.

    Not ``owned`` is what TileRT's own connector does: one buffer for everything that is sent.
    """
    held = cache(seed=4)
    with prefill(held, admission_window_ms=60_000) as engine:
        pool = engine.sender.staging
        assert pool is not None
        if not owned:
            pool._arena = Careless(1)
            pool._give = lambda start: None  # type: ignore[method-assign]
        holder = Holder(nodes.a.ctrl_port, f"holder-{owned}")
        engine.begin(f"first-{owned}", nodes.a, IDS, TOKENS)
        engine.compute()
        second = engine.send(f"second-{owned}", nodes.b, [1, 4], 100)
        assert (second.request, second.state) == (f"engine-second-{owned}", "sent")
        holder.complete()
        first = engine.outcome()
        assert (first.request, first.state) == (f"engine-first-{owned}", "sent")
        got = nodes.decoded("a", f"first-{owned}")["layers"]
        assert isinstance(got, list)
        assert injected_as(got, held, IDS, TOKENS) is owned
        other = nodes.decoded("b", f"second-{owned}")["layers"]
        assert isinstance(other, list)
        assert injected_as(other, held, [1, 4], 100)
        if owned:
            assert pool.leases == 0


def test_two_requests_of_one_step_go_to_two_nodes(nodes: Nodes, fp8: Prefill) -> None:
    fp8.begin("pair-a", nodes.a, [0, 1], 128)
    fp8.begin("pair-b", nodes.b, [2, 3], 70)
    fp8.compute()
    assert {fp8.outcome().state, fp8.outcome().state} == {"sent"}
    for name, ids, tokens in (("a", [0, 1], 128), ("b", [2, 3], 70)):
        layers = nodes.decoded(name, f"pair-{name}")["layers"]
        assert isinstance(layers, list)
        assert injected_as(layers, fp8.cache, ids, tokens)


def test_a_busy_node_is_left_alone_and_the_request_refused(nodes: Nodes) -> None:
    holder = Holder(nodes.a.ctrl_port, "busy-holder")
    with prefill(cache(), admission_window_ms=500) as engine:
        refused = engine.send("busy", nodes.a, IDS, TOKENS)
        assert (refused.state, refused.reason) == ("refused", "busy")
        assert "busy-holder" in refused.detail
        holder.complete()
        assert nodes.decoded("a", "busy-holder")["rid"] == "busy-holder"
        assert engine.send("after-busy", nodes.a, IDS, TOKENS).state == "sent"
    assert nodes.decoded("a", "after-busy")["seq_len"] == TOKENS


@pytest.mark.parametrize(
    ("name", "tokens", "options", "reason", "named"),
    [
        ("bf16", TOKENS, {}, "layout_version", "51"),
        ("glm5", TOKENS, {}, "layout_version", "dsv32"),
        ("a", ROOM + 1, {}, "sequence_too_long", f"takes {ROOM}"),
        ("a", TOKENS, {"senders": 1}, "sender_count", "waits for 8"),
        ("a", TOKENS, {"staging_bytes": 1 << 20}, "staging_full", "staging_bytes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    nodes: Nodes,
    name: str,
    tokens: int,
    options: dict[str, object],
    reason: str,
    named: str,
) -> None:
    node: DecodeNode = getattr(nodes, name)
    with prefill(cache(), **options) as engine:
        refused = engine.send(f"unfit-{reason}", node, [0, 1, 2, 3, 4], tokens)
    assert (refused.state, refused.reason) == ("refused", reason)
    assert named in refused.detail
    assert node.status()["status"] == "idle"


def test_a_cancelled_send_ends_and_its_node_serves_others(nodes: Nodes, fp8: Prefill) -> None:
    pool = fp8.sender.staging
    assert pool is not None
    fp8.begin("cancelled", nodes.b, IDS, TOKENS)
    nodes.b.wait_for(lambda: "request cancelled: seq_len" in nodes.b.tail(), "its admission")
    fp8.sender.cancel(["engine-cancelled"])
    outcome = fp8.outcome()
    assert (outcome.state, outcome.reason) == ("refused", "cancelled")
    assert pool.leases == 1  # The engine may still copy into it.
    fp8.compute()
    nodes.b.wait_for(lambda: pool.leases == 0, "the end of the copies")
    # The node waits for the rest until whoever wanted it gives up.
    assert decode(nodes.b, "cancelled", timeout_s=0.5).status_code == 504
    assert fp8.send("after-cancelled", nodes.b, IDS, TOKENS).state == "sent"
    assert nodes.decoded("b", "after-cancelled")["rid"] == "after-cancelled"


def test_a_killed_sender_blocks_its_node_until_the_decode_gives_up(
    nodes: Nodes, fp8: Prefill
) -> None:
    argv = [sys.executable, "-m", "tests.tilert.holding", str(nodes.b.ctrl_port), "killed"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "admitted\n"
        os.kill(child.pid, signal.SIGKILL)
    with prefill(cache(), admission_window_ms=300) as engine:
        refused = engine.send("behind", nodes.b, IDS, TOKENS)
    assert (refused.state, refused.reason) == ("refused", "busy")
    assert "killed" in refused.detail
    answer = decode(nodes.b, "killed", timeout_s=0.5)
    assert (answer.status_code, answer.json()["error"]) == (504, "kv_transfer_timeout")
    assert fp8.send("after-killed", nodes.b, IDS, TOKENS).state == "sent"
    assert nodes.decoded("b", "after-killed")["rid"] == "after-killed"


def test_a_node_that_freezes_in_mid_send_costs_that_send_only(nodes: Nodes) -> None:
    with prefill(cache(), send_timeout_ms=6_000) as engine:
        engine.begin("frozen", nodes.b, IDS, TOKENS)
        under_way = engine.sender._sends["engine-frozen"]
        nodes.b.wait_for(lambda: len(under_way._admitted) == 8, "admission of all ranks")
        nodes.b.freeze()
        try:
            engine.compute()
            outcome = engine.outcome()
            assert (outcome.state, outcome.reason) == ("refused", "timeout")
            pool = engine.sender.staging
            assert pool is not None
            nodes.a.wait_for(lambda: pool.leases == 0, "the fence")
            assert engine.send("beside", nodes.a, IDS, TOKENS).state == "sent"
        finally:
            nodes.b.thaw()
    assert nodes.decoded("a", "beside")["rid"] == "beside"
    assert decode(nodes.b, "frozen", timeout_s=0.5).status_code == 504


def test_a_request_that_its_router_gave_up_is_not_sent_again(nodes: Nodes) -> None:
    assert decode(nodes.a, "gone", timeout_s=0.3).status_code == 504
    with prefill(cache(), admission_window_ms=500) as engine:
        refused = engine.send("gone", nodes.a, IDS, TOKENS)
    assert (refused.state, refused.reason) == ("refused", "cancelling")


def test_a_node_that_dies_is_unreachable_and_is_met_again_when_it_is_back(
    nodes: Nodes, fp8: Prefill
) -> None:
    assert fp8.send("before-death", nodes.b, IDS, TOKENS).state == "sent"
    nodes.b.kill()
    gone = fp8.send("dead", nodes.b, IDS, TOKENS)
    assert (gone.state, gone.reason) == ("refused", "unreachable")
    nodes.b.start()
    nodes.b.wait_ready()
    nodes.used["b"] = 0
    assert fp8.send("after-death", nodes.b, IDS, TOKENS).state == "sent"
    layers = nodes.decoded("b", "after-death")["layers"]
    assert isinstance(layers, list)
    assert injected_as(layers, fp8.cache, IDS, TOKENS)
    assert fp8.sender.staging is not None
    assert fp8.sender.staging.leases == 0


def test_a_closed_engine_ends_its_sends(nodes: Nodes) -> None:
    with prefill(cache()) as engine:
        engine.begin("closed", nodes.a, IDS, TOKENS)
    assert engine.outcome().reason == "closed"
    assert [t.name for t in threading.enumerate() if t.name == "kvferry-tilert-closed"] == []
    httpx.post(f"{nodes.a.url}/pd/cancel", json={"rid": "closed"}, timeout=60.0, trust_env=False)
    decode(nodes.a, "closed", timeout_s=0.3)
