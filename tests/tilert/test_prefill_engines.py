"""Real vLLM engines on the CPU prefill for TileRT's published receive server.

``mla`` is a small DeepSeek with real latent attention, our connector alone; as vLLM's CPU backend
for it, it has blocks of 16 and neither chunked prefill nor a prefix cache. ``dense`` is a small
Llama whose rows are as long as TileRT's, under MultiConnector beside KVFerryConnector: what a row
means does not matter to who moves it. ``unfit`` is the same with another profile, ``plain`` has no
connector.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.e2e.conftest import KEY, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded, of
from tests.tilert.models import dense_model
from tests.tilert.nodes import DecodeNode, StartNode
from tests.tilert.prefill import LOOPBACK, decode

from kvferry.core.events import SendBegan, SendEnded
from kvferry.ids import ROUTER_SPACE
from kvferry_connectors.demo.tilert.model import mla_model
from kvferry_connectors.demo.tilert.package import package
from kvferry_connectors.demo.tilert.profile import PROFILE

pytestmark = pytest.mark.engine

ROOM = 1024
BUDGET = 256
"""Tokens of a step."""
WATCH = "tests.tilert.engine_watch"
UNSHARED = {"reuse": "off"}
"""Nobody waits for a plan, so that requests that are added together are computed together."""
COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": ROOM,
    "max_num_batched_tokens": BUDGET,
    "block_size": 32,
}


class Fleet:
    """The engines and the node, and which of the node's injects was the last."""

    def __init__(self, plane: Plane, folder: Path, node: DecodeNode) -> None:
        self.node = node
        self.plane = plane
        self.injects = 0
        dense, mla = dense_model(folder / "dense"), mla_model(folder / "mla")

        def ours(profile: Any, **more: Any) -> dict[str, Any]:
            return {
                "kv_connector": "KVFerryTileRTConnector",
                "kv_connector_module_path": "kvferry_connectors.tilert.connector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {
                    "profile": profile,
                    "writer_options": LOOPBACK,
                    "staging_bytes": 16 << 20,
                    "admission_window_ms": 30_000,
                    "connect_timeout_ms": 30_000,
                    "staging_wait_ms": 60_000,
                    **more,
                },
            }

        def beside(name: str, profile: Any) -> EngineProcess:
            ferry = {
                "kv_connector": "KVFerryConnector",
                "kv_connector_module_path": "kvferry_connectors.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"node": name, "nats_url": plane.url, "key": KEY},
            }
            config = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"connectors": [ferry, ours(profile)]},
            }
            args = {**COMMON, "kv_transfer_config": config}
            return EngineProcess(dense, name, connector={}, **args)

        alone = ours(PROFILE, nats_url=plane.url, node="mla")
        self.mla = EngineProcess(
            mla, "mla", connector={}, **{**COMMON, "kv_transfer_config": alone}
        )
        self.dense = beside("dense", PROFILE)
        self.unfit = beside("unfit", "dsv32")
        self.plain = EngineProcess(dense, "plain", connector=None, **COMMON)
        where = package()
        assert where is not None
        # vLLM imports the package `nixl`, which lies beside TileRT's.
        paths = {"PYTHONPATH": str(where), "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
        nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
        both = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [nixl, ours(PROFILE)]},
        }
        self.nixl = EngineProcess(
            dense, "nixl", connector={}, env=paths, **{**COMMON, "kv_transfer_config": both}
        )
        self.all = (self.mla, self.dense, self.unfit, self.plain, self.nixl)

    def mark(self, rid: str) -> dict[str, Any]:
        return {"tilert": {"host": "127.0.0.1", "port": self.node.ctrl_port, "rid": rid}}

    def delivered(self, engine: EngineProcess, rid: str, tokens: int) -> None:
        """The node's engine is given exactly what the engine had in its cache."""
        answer = decode(self.node, rid)
        assert answer.status_code == 200, answer.text
        got = self.node.injected(self.injects)
        self.injects += 1
        assert (got["rid"], got["seq_len"]) == (rid, tokens)
        rows = engine.ask("call", f"{WATCH}:rows", rid)
        assert [row_bytes(layer) for layer in got["layers"]] == rows
        assert len(set(rows)) == len(rows)  # None stands for another.
        engine.until("call", lambda idle: idle, args=(f"{WATCH}:idle",))

    def send(self, rid: str) -> tuple[Recorded, SendEnded]:
        """How the ledger tells a send: who wrote its end, and the end. It began before."""

        def ended(seen: list[Recorded]) -> list[tuple[Recorded, SendEnded]]:
            sends = [e.send for e in of(seen, SendBegan, rid=rid)]
            return [
                (one, one.event)
                for one in seen
                if isinstance(one.event, SendEnded) and one.event.send in sends
            ]

        (found,) = ended(self.plane.wait_for(ended, f"the end of the send of {rid}"))
        return found


def row_bytes(layer: Any) -> bytes:
    """What the node's engine was given of a layer, as the cache has it."""
    _, kv, pe = layer
    return bytes(torch.cat((kv, pe), 1).contiguous().view(torch.uint8).numpy())


@pytest.fixture(scope="module")
def fleet(decode_node: StartNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    plane = Plane(folder)
    made: Fleet | None = None
    try:
        plane.start_coordinator()
        spy = {"tokens": [1, 2]}
        node = decode_node(wait=False, model="tiny", dtype="bfloat16", max_seq_len=ROOM, spy=spy)
        made = Fleet(plane, folder, node)
        for engine in made.all:
            engine.wait_ready()
        node.wait_ready()
        for engine in (made.mla, made.dense, made.nixl):
            engine.ask("call", f"{WATCH}:watch")
        yield made
    finally:
        for engine in made.all if made is not None else ():
            engine.ask_to_stop()
        for engine in made.all if made is not None else ():
            engine.stop()
        plane.stop()


def test_latent_rows_of_a_deepseek_arrive(fleet: Fleet) -> None:
    text = prompt(1, 203)
    answer = fleet.mla.run("m1", text, tokens=1, kv_transfer_params=fleet.mark("latent"))
    said = answer.params["tilert"]
    assert said["rid"] == "latent"
    assert said["state"] in ("sending", "sent")
    fleet.delivered(fleet.mla, "latent", 203)
    assert fleet.mla.ask("call", f"{WATCH}:early") == PROFILE["layers"]
    # Alone, the connector has a node of its own.
    written, send = fleet.send("latent")
    assert (written.node, written.space) == ("mla", ROUTER_SPACE)
    assert (send.stage, send.reason, send.bytes) == ("", "", 203 * 1152 * PROFILE["layers"])


def test_the_originals_mark_and_a_derived_name_do_as_well(fleet: Fleet) -> None:
    mark = {"tilert_host": "127.0.0.1", "tilert_ctrl_port": fleet.node.ctrl_port}
    answer = fleet.mla.run("chatcmpl-agent-cafe", prompt(2, 50), tokens=1, kv_transfer_params=mark)
    assert answer.params["tilert"]["rid"] == "agent"
    fleet.delivered(fleet.mla, "agent", 50)


def test_a_prompt_computed_in_chunks_and_partly_from_the_cache_arrives_whole(fleet: Fleet) -> None:
    text = prompt(3, 640)
    fleet.dense.run("chunks", text, tokens=1, kv_transfer_params=fleet.mark("chunks"))
    fleet.delivered(fleet.dense, "chunks", 640)
    longer = text[:320] + prompt(4, 192)
    answer = fleet.dense.run("cached", longer, tokens=1, kv_transfer_params=fleet.mark("cached"))
    assert answer.report["local"] == 320
    fleet.delivered(fleet.dense, "cached", 512)
    # Beside KVFerryConnector, sends are facts of the engine's one node.
    written, send = fleet.send("cached")
    assert written.node == "dense"
    assert written.space != ROUTER_SPACE
    assert send.bytes == 512 * 1152 * PROFILE["layers"]
    seen = fleet.plane.events()
    assert {one.incarnation for one in seen if one.node == "dense"} == {written.incarnation}


def test_a_request_that_was_preempted_in_its_prompt_is_sent(fleet: Fleet) -> None:
    fleet.dense.hold(True)
    text = prompt(5, 640)
    fleet.dense.add(
        "again", text, tokens=1, kv_transfer_params=fleet.mark("again"), kvferry=UNSHARED
    )
    assert 0 < fleet.dense.ask("call", f"{WATCH}:steps", 2) < 640
    assert fleet.dense.ask("preempt").startswith("again")
    fleet.dense.hold(False)
    assert fleet.dense.answer("again").params["tilert"]["state"] in ("sending", "sent")
    fleet.delivered(fleet.dense, "again", 640)


def test_an_aborted_request_is_not_sent_and_holds_nothing(fleet: Fleet) -> None:
    fleet.dense.hold(True)
    mark = fleet.mark("aborted")
    fleet.dense.add("aborted", prompt(6, 640), tokens=1, kv_transfer_params=mark, kvferry=UNSHARED)
    assert fleet.dense.ask("call", f"{WATCH}:steps", 1) > 0
    fleet.dense.abort("aborted")
    fleet.dense.hold(False)
    fleet.dense.until("call", lambda idle: idle, args=(f"{WATCH}:idle",))
    assert decode(fleet.node, "aborted", timeout_s=0.5).status_code == 504
    _, send = fleet.send("aborted")
    assert (send.stage, send.reason, send.bytes) == ("claim", "cancelled", 0)


def batch(
    fleet: Fleet, engine: EngineProcess, name: str, mark: Any, seed: int, **others: Any
) -> Any:
    """A claimed and an unclaimed request in the same forward passes; ``others`` is the latter's."""
    asked = {} if engine is fleet.plain else {"kvferry": UNSHARED}
    if engine is fleet.plain:
        assert engine.ask("reset", False) is True  # Nothing of it comes from the cache.
    engine.hold(True)
    engine.add(
        f"{name}-claimed", prompt(7, 96), tokens=1, **asked, kv_transfer_params=mark, logprobs=5
    )
    engine.add(f"{name}-other", prompt(seed, 96), tokens=6, **asked, logprobs=5, **others)
    engine.hold(False)
    return engine.answer(f"{name}-claimed"), engine.answer(f"{name}-other")


def test_an_unclaimed_request_of_the_same_batch_is_as_without_us(fleet: Fleet) -> None:
    claimed, other = batch(fleet, fleet.dense, "with", fleet.mark("batch"), 8)
    plain_claimed, plain_other = batch(fleet, fleet.plain, "plain", {}, 8)
    assert len(other.logprobs) == 6
    assert (other.tokens, other.logprobs) == (plain_other.tokens, plain_other.logprobs)
    assert claimed.logprobs == plain_claimed.logprobs
    assert "tilert" in claimed.params
    assert "tilert" not in other.params
    fleet.delivered(fleet.dense, "batch", 96)
    _, another = batch(fleet, fleet.plain, "another", {}, 9)
    assert another.logprobs != other.logprobs


REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router of vLLM's own asks a prefill engine for."""


def test_beside_vllms_nixl_connector_each_claims_its_own(fleet: Fleet) -> None:
    plain_claimed, plain_other = batch(fleet, fleet.plain, "plain-nixl", {}, 8)
    for name, others in (("left", {}), ("nixls", {"kv_transfer_params": REMOTE_DECODE})):
        rid = f"beside-{name}"
        claimed, other = batch(fleet, fleet.nixl, name, fleet.mark(rid), 8, **others)
        assert (other.tokens, other.logprobs) == (plain_other.tokens, plain_other.logprobs)
        assert claimed.logprobs == plain_claimed.logprobs
        assert set(claimed.params) == {"tilert"}
        # NIXL's connector answers for its own request with where its blocks are.
        assert bool(other.params and other.params["remote_block_ids"]) is bool(others)
        fleet.delivered(fleet.nixl, rid, 96)


def test_with_a_model_that_does_not_fit_claimed_requests_are_refused_and_all_else_works(
    fleet: Fleet,
) -> None:
    claimed, other = batch(fleet, fleet.unfit, "unfit", fleet.mark("unfit"), 8)
    said = claimed.params["tilert"]
    assert (said["state"], said["reason"]) == ("refused", "model_unfit")
    assert "61 layers" in said["detail"]
    plain_claimed, plain_other = batch(fleet, fleet.plain, "plain-2", {}, 8)
    assert (other.tokens, other.logprobs) == (plain_other.tokens, plain_other.logprobs)
    assert claimed.logprobs == plain_claimed.logprobs
    _, send = fleet.send("unfit")
    assert (send.stage, send.reason) == ("claim", "model_unfit")
    assert fleet.unfit.ask("call", f"{WATCH}:allocated") is False
    assert fleet.unfit.ask("call", f"{WATCH}:idle") is True


def test_a_node_that_is_not_there_is_refused_and_the_engine_goes_on(fleet: Fleet) -> None:
    mark = {"tilert": {"host": "127.0.0.1", "port": 1, "rid": "nowhere"}}
    answer = fleet.mla.run("nowhere", prompt(10, 300), tokens=1, kv_transfer_params=mark)
    assert answer.params["tilert"]["target"] == "127.0.0.1:1"
    assert (answer.reason, len(answer.tokens)) == ("length", 1)
    fleet.mla.until("call", lambda idle: idle, args=(f"{WATCH}:idle",))
    bad = {"tilert": {"host": "127.0.0.1", "prot": 1}}
    _, send = fleet.send("nowhere")
    assert (send.stage, send.reason) == ("admission", "unreachable")
    refused = fleet.mla.run("bad", prompt(11, 20), tokens=1, kv_transfer_params=bad)
    assert refused.params["tilert"]["reason"] == "bad_mark"
