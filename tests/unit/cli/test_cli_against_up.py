"""Commands against a real `kvferry up` process with a small conversation in its ledger."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.processes import (
    COMMAND,
    Up,
    environment,
    eventually,
    kvferry,
)
from tests.unit.cli.running import document, run, runner
from tests.unit.cli.support import REQUEST, SPACE

from kvferry.cli import guard, replicas
from kvferry.cli.main import app
from kvferry.daemon.messages import Answer, Query
from kvferry.ledger.jetstream import connect
from kvferry_connectors.vllm.options import parse

LEADERS = {"leader_elected", "policy_set", "node_left", "checkpoint"}
"""What the coordinator writes in between, at moments of its own."""


@pytest.fixture(autouse=True)
def ledger_url(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)


def events(*arguments: str) -> list[Any]:
    """Events of the engines alone, as documents."""
    lines = run("events", *arguments, "--json").splitlines()
    return [one for one in map(json.loads, lines) if one["event"] not in LEADERS]


def seq_of(kind: str) -> int:
    """The sequence of the first event of a kind."""
    return int(events("--from", "1", "--kind", kind)[0]["seq"])


async def ask(url: str, query: Query) -> Answer:
    ledger = await connect(url, name="test")
    try:
        return await replicas.ask(ledger, await replicas.heard(ledger), query)
    finally:
        await ledger.close()


def test_up_says_what_vllm_needs_and_where_it_is(up: Up) -> None:
    config = up.said["kv_transfer_config"]
    assert config["kv_connector"] == "KVFerryConnector"
    assert config["kv_role"] == "kv_both"
    assert config["kv_connector_extra_config"]["nats_url"] == up.url
    state = json.loads((up.home / "kvferry" / "up.json").read_text())
    assert (state["url"], state["pid"]) == (up.url, up.process.pid)


def test_status_finds_the_running_up_by_its_state_file(up: Up) -> None:
    result = kvferry(up.home, "status", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["url"], found["source"]) == (up.url, "coordinator")
    space = found["spaces"][SPACE]
    assert {node["name"]: node["status"] for node in space["nodes"]} == {
        "d0": "joined",
        "p0": "joined",
    }
    assert space["offers"]["cache"] == {"offers": 1, "blocks": 8, "tokens": 256}
    reuse = space["reuse"]
    assert (reuse["prompt_tokens"], reuse["pulled_tokens"]) == (600, 256)
    assert space["misses"][0]["cause"] == "nothing_held"
    assert space["misses"][0]["cure"]


def test_status_reads_well() -> None:
    text = run("status")
    assert f"space {SPACE}" in text
    assert "42.7 %" in text
    assert "256  pulled from another node" in text
    assert "offered from the cache: 1 runs, 8 blocks, 256 tokens" in text
    assert "1 done (512.0 KiB)" in text
    assert "nothing_held" in text
    assert "cure:" in text


def test_events_in_all_their_forms() -> None:
    offered = seq_of("retained")
    until = events("--from", "1", "--to", str(offered))
    assert [one["event"] for one in until] == ["node_joined", "node_joined", "retained"]
    assert until[2]["body"]["tail"] == "08" * 32
    assert [one["event"] for one in events("--request", REQUEST)] == [
        "requested",
        "pin_ended",
        "transferred",
        "request_ended",
    ]
    joins = events("--from", "1", "--kind", "node_joined", "--kind", "retained", "--limit", "2")
    assert [one["event"] for one in joins] == ["node_joined", "node_joined"]
    produced = run("events", "--lane", "all", "--from", "-1h", "--kind", "produced")
    assert len(produced.splitlines()) == 1
    assert run("events", "--from", "-1h").splitlines() == run("events").splitlines()
    assert run("events", "--to", "-1h") == ""


def test_following_shows_what_comes_and_ends_with_ctrl_c(up: Up) -> None:
    follow = subprocess.Popen(
        [*COMMAND, "events", "--follow", "--limit", "1", "--kind", "policy_set", "--json"],
        env=environment(up.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Before --follow prints anything there has to be one such event, and one after it.
        run("observe", "--node", "p0")
        assert follow.stdout is not None
        event = json.loads(follow.stdout.readline())
        assert event["event"] == "policy_set"
        assert (event["body"]["mode"], event["body"]["node"]) == ("observe", "p0")
        run("resume", "--node", "p0")
        assert json.loads(follow.stdout.readline())["body"]["mode"] == "on"
        follow.send_signal(signal.SIGINT)
        assert follow.wait(30) == guard.OK
        assert follow.stderr is not None
        assert follow.stderr.read() == ""
    finally:
        follow.kill()
        follow.communicate()


def test_a_replay_in_another_process_has_the_coordinators_digest(up: Up) -> None:
    # Nobody writes meanwhile but the leader, so fold to where it is now.
    live = asyncio.run(ask(up.url, Query(verb="digest")))
    here = run("replay", "--to", str(live["position"]), "--digest").strip()
    there = kvferry(up.home, "replay", "--to", str(live["position"]), "--afresh", "--digest")
    assert here == there.stdout.strip() == live["digest"]
    earlier = seq_of("transferred") - 1
    assert run("replay", "--to", str(earlier), "--digest").strip() != live["digest"]


def test_replay_shows_the_state_of_then() -> None:
    early = document("replay", "--to", str(seq_of("retained") - 1))["spaces"][SPACE]
    assert (len(early["nodes"]), early["offers"]) == (2, [])
    during = str(seq_of("transferred") - 1)
    later = document("replay", "--to", during)["spaces"][SPACE]
    assert [one["transfer"] for one in later["transfers_open"]] == ["p.1"]
    now = document("replay")["spaces"][SPACE]
    assert [one["phase"] for one in now["transfers_ended"]] == ["done"]
    text = run("replay", "--to", during)
    assert "d.1" in text
    assert "digest" in text


def test_explain_tells_the_story_and_names_near_ids() -> None:
    text = run("explain", REQUEST)
    assert "256" in text
    assert "d0" in text
    assert document("explain", REQUEST)["transfers"] == ["p.1"]
    unknown = runner.invoke(app, ["explain", REQUEST + "x"])
    assert unknown.exit_code == guard.TROUBLE
    assert REQUEST in unknown.stderr
    assert document("explain", "zzz", code=guard.TROUBLE)["found"] is False


def test_pause_and_resume_say_what_is_in_force_and_where() -> None:
    text = run("pause", "--space", SPACE)
    assert "paused" in text
    assert {"  p0: paused", "  d0: paused"} <= set(text.splitlines())
    assert document("status")["spaces"][SPACE]["mode"] == "paused"
    assert "already paused" in run("pause", "--space", SPACE)
    answer = document("resume")
    assert answer["set"][0]["nodes"] == {"p0": "on", "d0": "on"}
    assert "no space 'nowhere'" in runner.invoke(app, ["pause", "--space", "nowhere"]).stderr
    assert document("pause", "--node", "x9", code=guard.TROUBLE)["reason"] == "unknown_node"


def test_doctor_finds_nothing_wrong_here() -> None:
    found = document("doctor")
    assert found["ok"] is True, found["checks"]
    levels = {one["check"]: one["level"] for one in found["checks"]}
    for check in ("nats", "jetstream", "stream KVF", "stream KVF_BLOCKS", "clock"):
        assert levels[check] == "ok"
    for node in ("p0", "d0"):
        assert (levels[f"node {node}"], levels[f"peer {node}"]) == ("ok", "ok")
    assert levels[f"space {SPACE}"] == "ok"
    assert {"p0", "d0"} <= found["keeps"][SPACE].keys()
    assert found["keeps"][SPACE] == {
        one["name"]: one["keeps"] for one in document("status")["spaces"][SPACE]["nodes"]
    }
    text = run("doctor")
    assert "0 failed" in text
    assert "retention of d0, p0: leases last 30 s" in text


def test_doctor_fails_with_a_key_that_others_can_read(tmp_path: Path) -> None:
    key = tmp_path / "config" / "kvferry" / "cluster.key"
    key.parent.mkdir(parents=True)
    key.write_text("00" * 32)
    key.chmod(0o644)
    text = run("doctor", code=guard.TROUBLE)
    assert f"chmod 600 {key}" in text
    assert "node d0" in text, "the other checks are made all the same"


def test_a_second_up_is_refused_by_name(up: Up) -> None:
    same_store = kvferry(up.home, "up", "--port", "0")
    assert same_store.returncode == guard.UNREACHABLE
    assert f"process {up.process.pid}" in same_store.stderr
    port = up.url.rpartition(":")[2]
    same_port = kvferry(up.home / "other", "up", "--port", port)
    assert same_port.returncode == guard.USAGE
    assert f"port {port}" in same_port.stderr
    assert document("status")["source"] == "coordinator", "the first one goes on"


def test_the_router_is_found_by_entry_point_and_records_in_the_ledger_of_up(
    up: Up, tmp_path: Path
) -> None:
    (tmp_path / "declared-1.dist-info").mkdir()
    info = tmp_path / "declared-1.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[kvferry.commands]\nrouter = kvferry_connectors.router.cli:app\n"
    )
    engines = ["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9"]
    router = subprocess.Popen(
        [*COMMAND, "router", *engines, "--port", "0", "--node", "r0"],
        env=environment(up.home, PYTHONPATH=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert router.stderr is not None
        assert any("router listens on http://127.0.0.1:" in line for line in router.stderr)

        def joined() -> bool:
            return "r0" in {one["name"] for one in document("status")["routers"]["nodes"]}

        eventually(joined, "the router joins the ledger")
        router.send_signal(signal.SIGTERM)
        rest = router.communicate(timeout=60)[1]
        assert router.returncode == 0
        assert "Traceback" not in rest
    finally:
        router.kill()
        router.communicate()


def test_what_up_prints_is_what_the_connector_takes(up: Up) -> None:
    config = up.said["kv_transfer_config"]
    options = parse(config["kv_connector_extra_config"])
    assert (options.nats_url, options.node) == (up.url, "p0")
    spec = importlib.util.find_spec(config["kv_connector_module_path"])
    assert spec is not None
    assert spec.origin is not None
    assert f"class {config['kv_connector']}(" in Path(spec.origin).read_text()
