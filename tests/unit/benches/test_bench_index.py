"""`kvferry bench index`: the indexes are told one and the same, and what is said of them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.benches.test_bench_commands import measured, runner

from kvferry.bench.index.child import Speed
from kvferry.bench.index.contenders import OURS, OURS_EVERY_BLOCK, Ours, reports
from kvferry.bench.index.files import read_events, write_events
from kvferry.bench.index.load import Ended, Fact, Gone, Plan, facts_of, hashes_of, requests_of
from kvferry.bench.index.reports import RouterReports
from kvferry.bench.index.run import check_answers
from kvferry.cli.main import app
from kvferry.core.events import Evicted, Retained
from kvferry.errors import ConfigError, KVFerryError
from kvferry.ids import unpack_short

TIGHT = Plan(nodes=3, chains=20, chain_blocks=128, run_blocks=16, pool_blocks=512)
SMALL = ("--chains", "16", "--chain-blocks", "128", "--rounds", "1", "--lookups", "50")


def facts(plan: Plan) -> list[Fact]:
    return list(facts_of(plan, requests_of(plan)))


def told_to_router(plan: Plan) -> list[set[int]]:
    """What Dynamo's events make each node hold, block by block."""
    held: list[set[int]] = [set() for _ in range(plan.nodes)]
    writer = RouterReports(plan.unit_blocks)
    for fact in facts(plan):
        for node, data, _ in writer.of(fact):
            event = json.loads(data)["data"]
            if "stored" in event:
                new = [block["block_hash"] for block in event["stored"]["blocks"]]
                parent = event["stored"]["parent_hash"]
                assert parent is None or parent in held[node], "a run hangs in the air"
                assert held[node].isdisjoint(new), "a block is stored twice"
                held[node].update(new)
            else:
                gone = set(event["removed"]["block_hashes"])
                assert gone <= held[node], "a block that is not there is removed"
                held[node] -= gone
    return held


def told_to_ours(plan: Plan, name: str) -> Ours:
    writer = reports(name, plan.unit_blocks)
    ours = Ours(8 if name == OURS else 1)
    for fact in facts(plan):
        ours.apply(list(writer.of(fact)))
    return ours


@pytest.mark.parametrize("name", [OURS, OURS_EVERY_BLOCK])
def test_both_indexes_are_told_the_same(name: str) -> None:
    held, ours = told_to_router(TIGHT), told_to_ours(TIGHT, name)
    blocks = 0
    for _, units in requests_of(TIGHT):
        hashes = hashes_of(units, TIGHT.unit_blocks)
        expected = []
        for mine in held:
            chain = unpack_short(hashes)
            expected.append(
                next((at for at, one in enumerate(chain) if one not in mine), len(chain))
            )
        assert ours.blocks(ours.ask(ours.question(hashes))) == sum(expected)
        blocks += sum(expected)
    assert blocks > 0


def test_a_full_pool_gives_up_what_was_used_longest_ago_and_no_more() -> None:
    held = told_to_router(TIGHT)
    assert all(TIGHT.pool_blocks // 2 < len(mine) <= TIGHT.pool_blocks for mine in held)
    happened = facts(TIGHT)
    stored = sum(len(one.units) - one.before for one in happened if isinstance(one, Ended))
    removed = sum(len(one.units) for one in happened if isinstance(one, Gone))
    assert removed > 0
    assert (stored - removed) * TIGHT.unit_blocks == sum(len(mine) for mine in held)
    writer = reports(OURS, TIGHT.unit_blocks)
    told = [report for fact in happened for report in writer.of(fact)]
    shrunk = [report for report in told if report.left]
    assert shrunk, "some offers shrink before they end"
    assert msgspec.msgpack.decode(shrunk[0].data, type=Evicted).keep > 0
    assert msgspec.msgpack.decode(told[0].data, type=Retained).count == TIGHT.run_blocks


def test_events_come_back_from_their_file(tmp_path: Path) -> None:
    writer = reports(OURS_EVERY_BLOCK, TIGHT.unit_blocks)
    told = [report for fact in facts(TIGHT) for report in writer.of(fact)] * 20
    write_events(tmp_path / "events", told)
    parts = list(read_events(tmp_path / "events"))
    assert len(parts) > 1
    assert [report for part in parts for report in part] == told


def test_figures_without_a_peer_are_ours_alone(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "\n".join(
            json.dumps({
                "timestamp": 10 * at, "input_length": 1_700, "output_length": 9,
                "hash_ids": [0, 1, 2, 10 + at] if at % 3 else [0, 1, 2, 3],
            })
            for at in range(12)
        )
    )  # fmt: skip
    figures = measured(tmp_path, "index", *SMALL, "--trace", str(trace))
    assert figures["load"]["stored_blocks"] == 16 * 128
    assert figures["trace"]["load"]["requests"] == 12
    for found in (figures, figures["trace"]):
        assert "peer" not in found
        for name in (OURS, OURS_EVERY_BLOCK):
            assert found[name]["apply_blocks_per_s"] > 0
            assert 0 < found[name]["lookup_us_p50"] <= found[name]["lookup_us_p99"]
            assert found[name]["bytes_per_block"] > 0
        assert found[OURS]["answered_blocks"] == found[OURS_EVERY_BLOCK]["answered_blocks"]


def test_a_peer_stands_beside_ours(tmp_path: Path) -> None:
    if importlib.util.find_spec("dynamo") is None:
        pytest.skip("ai-dynamo-runtime is not installed: pip install 'kvferry[bench]'")
    figures = measured(tmp_path, "index", *SMALL, "--peer", "dynamo")
    peer = figures["peer"]
    assert peer["name"] == "dynamo"
    assert {"apply_blocks_per_s", "lookup_us_p50", "lookup_us_p99", "bytes_per_block"} <= set(peer)
    assert peer["answered_blocks"] == figures["ours"]["answered_blocks"] > 0


def test_a_peer_that_is_not_installed_names_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dynamo._core", None)
    result = runner.invoke(app, ["bench", "index", "--peer", "dynamo"])
    assert result.exit_code == 2
    assert "pip install 'kvferry[bench]'" in result.output
    assert "Traceback" not in result.output


def test_indexes_that_disagree_are_no_result() -> None:
    def speed(answered: int) -> Speed:
        return Speed(
            apply_s=1, lookup_us_p50=1, lookup_us_p99=1, events=1, event_bytes=1,
            answered_blocks=answered,
        )  # fmt: skip

    check_answers({"ours": [speed(5), speed(5)], "dynamo": [speed(5)]})
    with pytest.raises(KVFerryError, match=r"do not agree .*ours \[5\], dynamo \[6\]"):
        check_answers({"ours": [speed(5)], "dynamo": [speed(6)]})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"run_blocks": 24}, "--chain-blocks 4096 is not a multiple of --run-blocks 24"),
        ({"nodes": 0}, "--nodes 0: use 1 or more"),
        ({"lookups": -1}, "--lookups -1: use 1 or more"),
        ({"pool_blocks": -1}, "--pool-blocks -1"),
        ({"pool_blocks": 100}, "--pool-blocks 100 does not hold a chain of 4096 blocks"),
        ({"run_blocks": 4}, "--run-blocks 4 is not a multiple of 8"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        Plan(**wrong)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--peer", "redis"], "--peer redis is not one of: dynamo"),
        (["--trace", "/nowhere/at/all"], "--trace /nowhere/at/all"),
        (["--chains", "0"], "--chains 0"),
    ],
)
def test_wrong_use_names_the_option(arguments: list[str], told: str) -> None:
    result = runner.invoke(app, ["bench", "index", *arguments])
    assert result.exit_code == 2, result.output
    assert told in " ".join(result.output.split())
    assert "Traceback" not in result.output
