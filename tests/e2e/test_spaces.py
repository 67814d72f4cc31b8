"""Engines whose KV is not interchangeable refuse each other by name, and go on serving."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import KEY, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane

from kvferry.core.state import NodeState
from kvferry.errors import PeerRefused
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.keys import load_key
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.peers.wire import Pin

PROMPT = 640
DIFFERENCES = {
    "coarse": {"block_size", "dtype", "hash_scheme", "layout"},
    "other": {"model"},
    "seeded": {"hash_scheme"},
    "cbor": {"hash_scheme"},
}
"""What keeps each engine apart from ``base``; the hash covers the block size as well."""
VALUES = {
    ("coarse", "block_size"): ("32", "64"),
    ("coarse", "dtype"): ("float32", "bfloat16"),
}

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engines(plane: Plane, start_engine: StartEngine, other_model: Path) -> dict[str, EngineProcess]:
    made = {
        "base": start_engine("base"),
        "coarse": start_engine("coarse", block_size=64, dtype="bfloat16"),
        "other": start_engine("other", model=other_model),
        "seeded": start_engine("seeded", env={"PYTHONHASHSEED": "7"}),
        "cbor": start_engine("cbor", prefix_caching_hash_algo="sha256_cbor"),
    }
    joined(*made.values())
    return made


@pytest.fixture(scope="module")
def nodes(engines: dict[str, EngineProcess], plane: Plane) -> dict[str, NodeState]:
    """The engines as the ledger knows them."""
    state = plane.state()
    return {
        name: node
        for space in state.spaces.values()
        for name, node in space.nodes.items()
        if name in engines
    }


@pytest.fixture(scope="module")
def base_client(nodes: dict[str, NodeState]) -> Iterator[PeerClient]:
    """A peer that says of itself what ``base`` does."""
    base = nodes["base"]
    identity = PeerIdentity(
        node="base", space=base.space, incarnation=base.incarnation, components=base.components
    )
    client = PeerClient(load_key(KEY), identity)
    yield client
    client.close()


def test_each_engine_is_in_a_space_of_its_own(engines: dict[str, EngineProcess]) -> None:
    spaces = {name: engine.ask("space") for name, engine in engines.items()}
    assert len(set(spaces.values())) == len(engines)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_exactly_the_components_that_differ_are_known(
    nodes: dict[str, NodeState], name: str
) -> None:
    one, other = nodes["base"].components, nodes[name].components
    assert {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} == (
        DIFFERENCES[name]
    )
    for (engine, component), values in VALUES.items():
        if engine == name:
            assert (one[component], other[component]) == values


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_session_is_refused_with_both_values(
    nodes: dict[str, NodeState], base_client: PeerClient, name: str
) -> None:
    there = nodes[name]
    frame = Pin(
        transfer=f"probe.{name}",
        incarnation=there.incarnation,
        hashes=(bytes(32),),
        deadline_ms=1000,
        ranks=1,
    )
    with pytest.raises(PeerRefused) as caught:
        base_client.call(there.address, frame, timeout_s=60.0)
    assert caught.value.reason == "space_mismatch"
    here = nodes["base"].components
    for component in DIFFERENCES[name]:
        said = f"{component}: {here[component]} here, {there.components[component]} there"
        assert said in caught.value.detail


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_hint_across_spaces_is_refused_and_the_engine_serves(
    engines: dict[str, EngineProcess], name: str
) -> None:
    text = prompt(10, PROMPT)
    held = engines["base"].run(f"for-{name}", text, tokens=2)
    answer = engines[name].run("across", text, tokens=16, kvferry={"hint": held.hint})
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "space_mismatch")
    assert answer.tokens == engines[name].run("again", text, tokens=16).tokens
    back = engines[name].run("back", prompt(11, PROMPT), tokens=2)
    answer = engines["base"].run(
        f"from-{name}", prompt(11, PROMPT), tokens=2, kvferry={"hint": back.hint}
    )
    assert answer.report["pulled"] == 0


@pytest.mark.parametrize("name", ["base", "seeded", "cbor"])
def test_the_same_weights_give_the_same_answer_apart(
    engines: dict[str, EngineProcess], reference: EngineProcess, name: str
) -> None:
    text = prompt(20, PROMPT)
    expected = reference.run(f"alone-{name}", text, tokens=16).tokens
    assert engines[name].run("alone", text, tokens=16).tokens == expected


def test_other_weights_give_another_answer(
    engines: dict[str, EngineProcess], reference: EngineProcess
) -> None:
    """The control: a mix-up of the two models would be seen."""
    text = prompt(21, PROMPT)
    expected = reference.run("weights", text, tokens=16).tokens
    assert engines["other"].run("weights", text, tokens=16).tokens != expected


def test_doctor_names_what_keeps_engines_apart(nodes: dict[str, NodeState], plane: Plane) -> None:
    done = plane.cli("doctor", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 1
    assert not document["ok"]
    found = {one["check"]: one for one in document["checks"] if one["level"] == "fail"}
    for name, components in DIFFERENCES.items():
        check = found.get(f"spaces of base and {name}") or found[f"spaces of {name} and base"]
        for component in components:
            assert f"{component}: " in check["text"]
            for node in ("base", name):
                assert f"{nodes[node].components[component]} on {node}" in check["text"]
        assert check["cure"]
