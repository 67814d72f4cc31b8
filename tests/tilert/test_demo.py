"""``kvferry demo --tilert`` for real: router, vLLM as prefill and TileRT's server together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.plane import Recorded, View, of
from tests.unit.demo.test_demo_interrupted import interrupt

from kvferry.core.events import (
    RequestEnded,
    SendBegan,
    SendEnded,
    SlotChanged,
    Transferred,
    TurnEnded,
)
from kvferry.ledger.embedded import EmbeddedServer
from kvferry_connectors.demo.tilert.settings import NODES, TOKEN_BYTES

pytestmark = pytest.mark.engine

DEMO_S = 900.0


@pytest.fixture(scope="module")
def shown(
    tilert_package: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, list[Recorded]]:
    """What the demo wrote to its file, and the facts of the ledger that it left."""
    folder = tmp_path_factory.mktemp("demo")
    file = folder / "figures.json"
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "kvferry"), "demo", "--tilert", "--keep"),
            *("--dir", str(folder / "run"), "--json", str(file)),
        ],
        capture_output=True,
        text=True,
        timeout=DEMO_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All as it must be" in done.stdout
    assert "are not a model's" in " ".join(done.stdout.split())
    (run,) = (folder / "run").iterdir()
    with EmbeddedServer(run / "ledger") as server:
        facts = View(server.url).events()
    return json.loads(file.read_text()), facts


def test_every_turn_goes_by_lease_send_answer_return_and_reuse(
    shown: tuple[Any, list[Recorded]],
) -> None:
    document, facts = shown
    assert document["problems"] == []
    assert document["outputs_equal"] is True
    assert [(t["conversation"], t["turn"]) for t in document["turns"]] == [
        *(("A", n) for n in range(1, 5)),
        *(("B", n) for n in range(1, 3)),
    ]
    for told in document["turns"]:
        (turn,) = of(facts, TurnEnded, request=told["request"])
        leases = of(facts, SlotChanged, request=told["request"], fence=told["slot_generation"])
        assert [one.change for one in leases] == ["granted", "confirmed", "replied"]
        assert {one.node for one in leases} == {told["node"]} == {turn.decode_node}
        (began,) = of(facts, SendBegan, fence=told["slot_generation"])
        (ended,) = of(facts, SendEnded, send=began.send)
        assert (began.slot, began.external_id) == (told["node"], told["request"])
        assert ended.reason == ""
        assert ended.bytes == told["sent_bytes"] == told["prompt_tokens"] * TOKEN_BYTES
        (prefill,) = of(facts, RequestEnded, request=began.request)
        assert prefill.computed_tokens == told["computed_tokens"]
        assert prefill.pulled_tokens == told["pulled_tokens"]
        pulled = of(facts, Transferred, request=began.request)
        if told["turn"] == 1:
            assert pulled == []
        else:
            assert sum(one.tokens for one in pulled) == told["pulled_tokens"] > 0
            assert {one.source for one in pulled} == {told["source"]} <= set(NODES)
            assert told["computed_tokens"] < told["prompt_tokens"] / 2 + 200
        (kept,) = of(facts, RequestEnded, request=began.rid)
        assert kept.kept_blocks == told["returned_blocks"] > 0


def test_what_does_not_go_as_usual_goes_as_it_should(shown: tuple[Any, list[Recorded]]) -> None:
    document, facts = shown
    assert [one["ok"] for one in document["cases"]] == [True] * 5, document["cases"]
    full, native, drained, killed, after = document["cases"]
    assert full["seen"].startswith("429")
    (turn,) = of(facts, TurnEnded, request=native["request"])
    assert turn.decode_node == "d0"
    assert of(facts, SendBegan, external_id=native["request"]) == []
    (turn,) = of(facts, TurnEnded, request=drained["request"])
    (prefill,) = [e for e in of(facts, RequestEnded, external_id=turn.request) if e.source]
    assert {turn.decode_node, prefill.source} == set(NODES)
    assert of(facts, SlotChanged, node=prefill.source, change="drained")
    (turn,) = of(facts, TurnEnded, request=killed["request"])
    assert (turn.outcome, turn.decode_node) == ("error", "t1")
    (turn,) = of(facts, TurnEnded, request=after["request"])
    assert (turn.outcome, turn.decode_node) == ("ok", "t0")
    (prefill,) = [e for e in of(facts, RequestEnded, external_id=turn.request) if e.source]
    assert (prefill.source, prefill.pulled_tokens > 0) == ("t0", True)


def test_the_ledger_tells_the_same(shown: tuple[Any, list[Recorded]]) -> None:
    document, facts = shown
    ledger = document["ledger"]
    assert ledger["replay_equal"] is True
    assert ledger["violations"] == []
    assert ledger["events"]["send_began"] == len(
        [one for one in facts if isinstance(one.event, SendBegan)]
    )
    began = {one.event.send for one in facts if isinstance(one.event, SendBegan)}
    ended = [one.event.send for one in facts if isinstance(one.event, SendEnded)]
    assert sorted(began) == sorted(ended)
    # Killed nodes and a full pool included, no send was made without a lease.
    assert all(one.event.fence for one in facts if isinstance(one.event, SendBegan))


def test_nothing_is_left_of_an_interrupted_one(tilert_package: None, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kvf") as short:
        words = "starting two vLLM engines"  # And the two nodes.
        interrupt(tmp_path, Path(short), words, signal.SIGINT, least=7, options=["--tilert"])
