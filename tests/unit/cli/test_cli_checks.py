"""What doctor finds, on a ledger in memory and on this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.unit.cli.support import (
    COMPONENTS,
    OTHER_SPACE,
    SPACE,
    Writer,
    converse,
    keep_otherwise,
)

from kvferry.cli.checks import beats as beats_module
from kvferry.cli.checks import local, nodes
from kvferry.cli.checks.beats import beating
from kvferry.cli.checks.coordinator import check_coordinator, check_record
from kvferry.cli.checks.finding import FAIL, OK, WARN, Finding
from kvferry.cli.checks.keeping import check_keeping, in_force_by_node
from kvferry.core.events import COORD, LeaderElected, NodeClosed, NodeLeft
from kvferry.core.messages import Announce, Heartbeat, encode, heartbeat_subject
from kvferry.core.state import State
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.fold import fold_to


def levels(findings: list[Finding]) -> dict[str, str]:
    return {one.check: one.level for one in findings}


async def test_nodes_that_beat_are_well_and_silent_ones_are_not() -> None:
    log = MemoryLog()
    _, d = await converse(log)
    state = await fold_to(log)
    assert levels(nodes.check_nodes(state, {"p0"})) == {"node p0": OK, "node d0": FAIL}
    await d.write(NodeClosed(incarnation=d.incarnation))
    state = await fold_to(log)
    assert levels(nodes.check_nodes(state, {"p0"})) == {"node p0": OK, "node d0": OK}
    assert [one.level for one in nodes.check_nodes(State(), set())] == [WARN]


async def test_a_node_that_went_is_mentioned_and_a_hole_in_a_record_is_trouble() -> None:
    log = MemoryLog()
    p, _ = await converse(log)
    leader = Writer(log, "c-1", epoch=1)
    left = NodeLeft(term=1, node="p0", incarnation=p.incarnation, epoch=1)
    await leader.write(LeaderElected(term=1, replica="c-1"), left, lane=COORD)
    state = await fold_to(log)
    assert levels(nodes.check_nodes(state, {"d0"})) == {"node p0": WARN, "node d0": OK}
    state.spaces[SPACE].nodes["d0"].status = "fenced"
    assert levels(nodes.check_nodes(state, {"d0"}))["node d0"] == FAIL


async def test_a_nodes_own_warning_is_shown_with_its_cure() -> None:
    log = MemoryLog()
    await Writer(log, "p0").join(warnings=("prefix caching is off: x; start it with --on",))
    found = nodes.check_nodes(await fold_to(log), {"p0"})
    assert found[1] == Finding("node p0", WARN, "prefix caching is off: x", "start it with --on")


async def test_retention_settings_in_force_are_said_of_nodes_that_keep_alike() -> None:
    log = MemoryLog()
    _, d = await converse(log)
    (found,) = check_keeping(await fold_to(log))
    assert (found.check, found.level) == ("retention of d0, p0", OK)
    started = (
        "leases last 30 s, a request may ask for 600 s, leases hold at most 10 % of the pool, "
        "leases end while less than 4.9 % of the pool is free; older, and does not say how it was "
        "started: the connector's defaults"
    )
    assert found.text == f"{started}; all as started"
    await keep_otherwise(log)
    state = await fold_to(log)
    said = {one.check: one.text for one in check_keeping(state)}
    assert said["retention of d0"].startswith("nothing is leased, a request may ask for 600 s, ")
    assert said["retention of d0"].endswith(
        "set by `kvferry policy`: --free-watermark, --lease-budget"
    )
    assert "less than 19.9 % of the pool is free" in said["retention of p0"]
    assert said["retention of p0"].endswith("set by `kvferry policy`: --free-watermark")
    (keeps,) = in_force_by_node(state).values()
    assert {name: one["lease_blocks"] for name, one in keeps.items()} == {"d0": 0, "p0": 51}
    await d.write(NodeClosed(incarnation=d.incarnation))
    assert [one.check for one in check_keeping(await fold_to(log))] == ["retention of p0"]
    assert check_keeping(State()) == []


async def test_two_spaces_of_one_model_name_what_differs_with_both_values_and_the_cure() -> None:
    log = MemoryLog()
    await Writer(log, "p0").join()
    other = COMPONENTS | {"block_size": "64", "model": "tiny@000000000002"}
    await Writer(log, "d0", space=OTHER_SPACE).join(components=other)
    found = [one for one in nodes.check_spaces(await fold_to(log)) if one.level == FAIL]
    assert len(found) == 1
    assert "block_size: 32 on p0, 64 on d0" in found[0].text
    assert "model: tiny@000000000001 on p0, tiny@000000000002 on d0" in found[0].text
    assert "dtype" not in found[0].text
    assert "--block-size" in found[0].cure
    assert "same weights" in found[0].cure


async def test_other_models_and_equal_nodes_are_no_trouble() -> None:
    log = MemoryLog()
    await Writer(log, "p0").join()
    await Writer(log, "d0").join()
    foreign = COMPONENTS | {"model": "large@000000000001"}
    await Writer(log, "x0", space=OTHER_SPACE).join(components=foreign)
    found = nodes.check_spaces(await fold_to(log))
    assert levels(found) == {f"space {SPACE}": OK, f"space {OTHER_SPACE}": WARN}


async def test_heartbeats_are_believed_of_the_incarnation_that_joined_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beats_module, "LISTEN_S", 0.5)
    log = MemoryLog()
    expected = {("p0", "new"), ("d0", "life")}

    async def beat(node: str, incarnation: str) -> None:
        message = Heartbeat(node=node, space=SPACE, incarnation=incarnation, epoch=1)
        await log.publish(heartbeat_subject(SPACE, node), encode(message))

    async def beat_on() -> None:
        while True:
            await log.publish(heartbeat_subject(SPACE, "p0"), b"rubbish")
            await beat("p0", "old")
            await beat("d0", "life")
            await asyncio.sleep(0.02)

    beats = asyncio.create_task(beat_on())
    try:
        assert await beating(log, expected) == {"d0"}
        assert await beating(log, {("d0", "life")}) == {"d0"}
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


def test_no_coordinator_a_late_one_and_two_leaders() -> None:
    def one(replica: str, term: int, leader: bool, position: int) -> Announce:
        return Announce(replica=replica, term=term, leader=leader, position=position)

    assert levels(check_coordinator([], 10)) == {"coordinator": FAIL}
    assert levels(check_coordinator([one("c-1", 1, True, 10)], 10)) == {"coordinator c-1": OK}
    late = check_coordinator([one("c-1", 1, True, 10)], 10_000)
    assert levels(late) == {"coordinator c-1": WARN}
    assert "9990 messages behind" in late[0].text
    two = [one("c-1", 1, True, 10), one("c-2", 2, True, 10)]
    assert levels(check_coordinator(two, 10))["coordinator"] == WARN


async def test_the_record_shows_undecodable_messages_with_their_sequence() -> None:
    log = MemoryLog()
    await converse(log)
    seq = await log.append(f"kvf.{SPACE}.p0.facts", b"rubbish", message_id="x")
    found = check_record(await fold_to(log))
    assert [one.level for one in found] == [WARN]
    assert f"at sequence {seq}" in found[0].text


def test_a_key_that_others_can_read_fails(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    assert local.check_key(path).level == OK
    assert not path.exists(), "looking creates nothing"
    path.write_text("00" * 32)
    path.chmod(0o640)
    found = local.check_key(path)
    assert (found.level, found.cure) == (FAIL, f"chmod 600 {path}")
    path.chmod(0o600)
    assert local.check_key(path).level == OK


def test_the_key_is_looked_for_where_engines_look(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": os.sep}
    assert local.key_file(env) == tmp_path / "kvferry" / "cluster.key"
    assert local.key_file(env | {"KVFERRY_KEY_FILE": "/elsewhere"}) == Path("/elsewhere")


async def test_peers_are_dialled(unused_tcp_port: int) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        found = await local.check_peers(
            [("p0", f"127.0.0.1:{port}"), ("d0", f"127.0.0.1:{unused_tcp_port}"), ("x", "nowhere")]
        )
    assert [one.level for one in found] == [OK, FAIL, FAIL]
    assert "refused" in found[1].text.lower()


@pytest.mark.parametrize(("mode", "count"), [("on", 0), ("paused", 1), ("observe", 1)])
async def test_a_paused_space_is_mentioned(mode: str, count: int) -> None:
    log = MemoryLog()
    await converse(log)
    state = await fold_to(log)
    state.spaces[SPACE].mode = mode
    found = check_record(state)
    assert len(found) == count
