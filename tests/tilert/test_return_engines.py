"""A real vLLM engine's next turn takes over what a TileRT node generated.

The engine is a small DeepSeek with latent attention on the CPU, with ``KVFerryConnector`` and
``KVFerryTileRTConnector`` under ``MultiConnector``. The node is TileRT's published server with an
engine whose rows are those that vLLM itself computes for the whole sequence: they come over the
wire first, as a prompt's. So what the next turn pulls is what vLLM would have computed, and its
answer must be that of an engine that computed everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.e2e.conftest import KEY, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, of
from tests.tilert.nodes import DecodeNode, StartNode
from tests.tilert.playback import write_rows
from tests.tilert.prefill import LOOPBACK

from kvferry.core.events import NodeJoined, RequestEnded, Transferred
from kvferry_connectors.demo.tilert.model import mla_model
from kvferry_connectors.demo.tilert.profile import LAYERS, PROFILE

pytestmark = pytest.mark.engine

ROOM = 1024
BLOCK = 16
PROMPT, ANSWER = 203, 60
KEPT = (PROMPT + ANSWER - 1) // BLOCK
CLOSE = 0.15
"""Of log probabilities whose KV differs by no more than the order in which bfloat16 was summed."""
COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": ROOM,
    "max_num_batched_tokens": ROOM,
    "block_size": BLOCK,
    "prefix_caching_hash_algo": "sha256_cbor",
}


def both(url: str) -> dict[str, Any]:
    """The configuration of an engine that prefills for TileRT and takes back."""
    patient = {"plan_deadline_ms": 15_000, "pin_timeout_ms": 15_000, "verify": "full"}
    ferry = {
        "kv_connector": "KVFerryConnector",
        "kv_connector_module_path": "kvferry_connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "node": "p0",
            "nats_url": url,
            "key": KEY,
            "parent_load_failure_policy": "recompute",
            **patient,
        },
    }
    tilert = {
        "kv_connector": "KVFerryTileRTConnector",
        "kv_connector_module_path": "kvferry_connectors.tilert.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "profile": PROFILE,
            "writer_options": LOOPBACK,
            "staging_bytes": 16 << 20,
            "admission_window_ms": 30_000,
            "connect_timeout_ms": 30_000,
            "staging_wait_ms": 60_000,
        },
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [ferry, tilert]},
    }


class Fleet:
    """An engine, one without connectors that computes everything, and a node that keeps."""

    def __init__(self, plane: Plane, folder: Path, node: DecodeNode) -> None:
        self.plane = plane
        self.node = node
        self.injects = 0
        model = mla_model(folder / "mla")
        args = {**COMMON, "kv_transfer_config": both(plane.url)}
        self.engine = EngineProcess(model, "p0", connector={}, **args)
        self.plain = EngineProcess(model, "plain", connector=None, **COMMON)

    def send(self, rid: str, tokens: list[int], salt: str | None = None, **kvferry: Any) -> None:
        """Prefill, with the node as target."""
        mark = {"tilert": {"host": "127.0.0.1", "port": self.node.ctrl_port, "rid": rid}}
        self.engine.run(
            rid, tokens, tokens=1, salt=salt, kv_transfer_params=mark, kvferry=kvferry or None
        )

    def decode(self, rid: str, answer: list[int]) -> None:
        body = {
            "rid": rid,
            "first_token_id": answer[0],
            "max_tokens": len(answer),
            "timeout_s": 60.0,
        }
        said = httpx.post(f"{self.node.url}/pd/decode", json=body, timeout=120.0, trust_env=False)
        assert said.status_code == 200, said.text
        assert said.json()["token_ids"] == answer
        self.injects += 1

    def first_turn(self, seed: int, salt: str | None = None) -> list[int]:
        """Prompt and answer, of which the node keeps what vLLM computes; all tokens of it."""
        tokens = prompt(seed, PROMPT + ANSWER)
        nothing = [(torch.zeros(1, 128), torch.zeros(1, 512), torch.zeros(1, 64))] * LAYERS
        write_rows(self.node.folder, nothing, [0])
        self.send(f"whole-{seed}", tokens, reuse="off")
        self.decode(f"whole-{seed}", tokens[-1:])
        rows = self.node.injected(self.injects - 1)["layers"]
        write_rows(self.node.folder, rows, tokens[PROMPT + 1 :])
        rid = f"turn-{seed}"
        self.send(rid, tokens[:PROMPT], salt, session=f"s{seed}")
        self.decode(rid, tokens[PROMPT:])
        seen = self.plane.wait_for(lambda found: of(found, RequestEnded, request=rid), rid, 60.0)
        ended = of(seen, RequestEnded, request=rid)[0]
        assert (ended.kept_blocks, ended.not_kept) == (KEPT, ""), self.node.tail()
        assert ended.session == f"s{seed}"
        self.plane.wait_projected()
        self.engine.until("plans", bool)
        return tokens

    def next_turn(self, seed: int, before: list[int], tail: int, salt: str | None = None) -> Answer:
        tokens = [*before[: KEPT * BLOCK], *prompt(1000 + seed, tail)]
        return self.engine.run(f"next-{seed}-{tail}", tokens, salt=salt, **ASKED)

    def computed(self, seed: int, before: list[int], tail: int) -> Answer:
        """The same by the engine that computes everything."""
        tokens = [*before[: KEPT * BLOCK], *prompt(1000 + seed, tail)]
        return self.plain.run(f"plain-{seed}-{tail}", tokens, **ASKED)


ASKED: dict[str, Any] = {"tokens": 6, "temperature": 0.0, "logprobs": 5}


def distance(one: Answer, other: Answer) -> float:
    """Between what two engines thought of the first token; inf where they share no candidate."""
    a, b = one.logprobs[0], other.logprobs[0]
    return max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=math.inf)


@pytest.fixture(scope="module")
def fleet(decode_node: StartNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("returning")
    plane = Plane(folder)
    made: Fleet | None = None
    try:
        plane.start_coordinator()
        node = decode_node(
            wait=False,
            model=PROFILE["name"],
            dtype="bfloat16",
            max_seq_len=ROOM,
            keep=(
                *("--node", "t0", "--nats", plane.url, "--key", KEY),
                *("--host-tier-bytes", str(8 << 20), "--return-within-ms", "30000"),
                *("--engine", "tests.tilert.playback:make"),
            ),
        )
        made = Fleet(plane, folder, node)
        made.engine.wait_ready()
        made.plain.wait_ready()
        node.wait_ready()
        # Before its first step: none of the other connectors would be put off by our ranks' word.
        plane.wait_for(lambda found: of(found, NodeJoined), "the engine in the ledger", 60.0)
        yield made
    finally:
        for engine in (made.engine, made.plain) if made is not None else ():
            engine.ask_to_stop()
        for engine in (made.engine, made.plain) if made is not None else ():
            engine.stop()
        plane.stop()


@pytest.mark.parametrize("tail", [1, 37])
def test_the_next_turn_pulls_the_answer_and_computes_only_what_is_new(
    fleet: Fleet, tail: int
) -> None:
    before = fleet.first_turn(10 + tail)
    answer = fleet.next_turn(10 + tail, before, tail)
    assert (answer.report["from"], answer.report["pulled"]) == ("t0", KEPT * BLOCK)
    assert answer.report["computed"] == tail
    wanted = fleet.computed(10 + tail, before, tail)
    assert answer.tokens == wanted.tokens
    assert distance(answer, wanted) < CLOSE
    seen = fleet.plane.wait_for(
        lambda found: [e for e in of(found, Transferred, source="t0") if e.count == KEPT],
        "the transfer",
    )
    moved = of(seen, Transferred, source="t0")[-1]
    assert (moved.host_blocks, moved.start) == (KEPT, 0)


def test_a_next_turn_for_the_node_sends_what_came_from_it(fleet: Fleet) -> None:
    before = fleet.first_turn(5)
    made = torch.load(fleet.node.folder / "rows.pt")
    tokens = [*before[: KEPT * BLOCK], *prompt(1005, 20)]
    fleet.send("again", tokens, session="s5")
    fleet.decode("again", [tokens[-1]])
    seen = fleet.plane.wait_for(
        lambda found: [e for e in of(found, RequestEnded, session="s5") if e.pulled_tokens],
        "the end of the next turn at the engine",
    )
    ended = next(e for e in of(seen, RequestEnded, session="s5") if e.pulled_tokens)
    assert (ended.source, ended.pulled_tokens) == ("t0", KEPT * BLOCK)
    sent = fleet.node.injected(fleet.injects - 1)["layers"]
    for (_, kv, pe), (_, made_kv, made_pe) in zip(sent, made, strict=True):
        assert torch.equal(kv[PROMPT : KEPT * BLOCK], made_kv[PROMPT : KEPT * BLOCK])
        assert torch.equal(pe[PROMPT : KEPT * BLOCK], made_pe[PROMPT : KEPT * BLOCK])
        assert not torch.equal(kv[KEPT * BLOCK :][:6], made_kv[KEPT * BLOCK :][:6])


def test_rows_of_another_sequence_give_another_answer(fleet: Fleet) -> None:
    garbage = fleet.node.folder / "garbage"
    garbage.touch()
    try:
        before = fleet.first_turn(2)
    finally:
        garbage.unlink()
    answer = fleet.next_turn(2, before, 1)
    assert answer.report["pulled"] == KEPT * BLOCK
    wanted = fleet.computed(2, before, 1)
    assert answer.tokens != wanted.tokens or distance(answer, wanted) > 2 * CLOSE
    assert distance(answer, wanted) > CLOSE


def test_a_tenant_gets_nothing_of_another_one(fleet: Fleet) -> None:
    before = fleet.first_turn(3, salt="mine")
    theirs = fleet.next_turn(3, before, 5, salt="theirs")
    assert theirs.report["pulled"] == 0
    mine = fleet.next_turn(3, before, 6, salt="mine")
    assert mine.report["pulled"] == KEPT * BLOCK


def test_a_node_that_was_killed_between_the_turns_costs_a_recompute(fleet: Fleet) -> None:
    before = fleet.first_turn(4)
    fleet.node.kill()
    answer = fleet.next_turn(4, before, 5)
    assert (answer.report["pulled"], answer.report["computed"]) == (0, KEPT * BLOCK + 5)
    assert answer.report["miss"]
    assert answer.tokens == fleet.computed(4, before, 5).tokens
