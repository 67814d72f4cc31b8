"""How nodes keep, set by `kvferry policy` on a real ledger: a real agent hears and follows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.cli.processes import Up, eventually
from tests.unit.cli.running import document, run, runner

from kvferry.cli import guard
from kvferry.cli.main import app
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.node.agent.agent import Identity, NodeAgent, NodeSettings
from kvferry.node.outbox.outbox import Outbox

SPACE = "zz-kept-0123456789ab"
ON = ("--space", SPACE)


@pytest.fixture(autouse=True)
def ledger_url(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)


@contextmanager
def engine(url: str, name: str, life: str) -> Iterator[list[RetentionSettings]]:
    """A node that was started with defaults; what it is told of how to keep."""
    heard: list[RetentionSettings] = []
    agent = NodeAgent(NodeSettings(nats_url=url, node=name), Outbox(), on_retention=heard.append)
    agent.start()
    try:
        agent.join(
            Identity(
                space=SPACE,
                incarnation=life * 16,
                block_size=16,
                blocks=1_000,
                block_bytes=4_096,
                lease_blocks=100,
                lease_ms=30_000,
                watermark_blocks=50,
                retain_max_ms=600_000,
            )
        )
        eventually(lambda: _joined(name, life), f"{name} joined")
        yield heard
    finally:
        agent.stop(10.0)


def _joined(name: str, life: str) -> bool:
    space = document("status")["spaces"].get(SPACE, {"nodes": []})
    return any(one["name"] == name and one["incarnation"] == life * 16 for one in space["nodes"])


def keeps(*arguments: str) -> dict[str, Any]:
    """How each node keeps, as `kvferry policy --json` says."""
    nodes = document("policy", *ON, *arguments)["spaces"][SPACE]["nodes"]
    return {one["name"]: one["keeps"] for one in nodes}


def test_what_is_set_is_in_force_on_nodes_and_stands_in_the_ledger(up: Up) -> None:
    with engine(up.url, "k0", "a") as heard, engine(up.url, "k1", "b") as other:
        before = document("status")["last_seq"]
        text = run("policy", *ON, "--ttl", "60", "--lease-budget", "20%")
        assert "leases last 60 s, leases hold at most 20 % of the pool" in text
        assert "  k0: leases for 60 s in 200 blocks" in text.splitlines()
        wanted = RetentionSettings(lease_ms=60_000, lease_budget=0.2)
        eventually(lambda: heard[-1:] == other[-1:] == [wanted], "both hear of it")
        assert "already" in run("policy", *ON, "--ttl", "60")
        run("policy", *ON, "--node", "k1", "--ttl", "5", "--host-budget", "0")
        own = RetentionSettings(lease_ms=5_000, lease_budget=0.2, host_budget=0.0)
        eventually(lambda: other[-1] == own, "k1 hears of its own")
        assert heard[-1] == wanted
        now = keeps()
        assert (now["k0"]["lease_ms"], now["k0"]["lease_blocks"]) == (60_000, 200)
        assert now["k1"]["set"] == ["host_budget", "lease_budget", "lease_ms"]
        assert keeps("--node", "k1") == {"k1": now["k1"]}
        assert document("replay", "--to", str(before))["spaces"][SPACE]["retention"] == {}
        then = document("replay")["spaces"][SPACE]
        assert then["retention"] == {"lease_ms": 60_000, "lease_budget": 0.2}
        assert then["retentions"] == {"k1": {"lease_ms": 5_000, "host_budget": 0.0}}
        assert "set by `kvferry policy` for k1: leases last 5 s" in run("status")
        told = run("events", "--from", "1", "--kind", "policy_set")
        assert "for the whole space: leases last 60 s" in told
        assert "for node k1: leases last 5 s, the host tier is emptied; set by" in told
    # A process that comes later hears of it too, though nobody says it again.
    with engine(up.url, "k0", "c") as heard:
        eventually(lambda: heard[-1:] == [wanted], "the next process hears of it")
        run("policy", *ON, "--ttl", "default", "--lease-budget", "default")
        eventually(lambda: heard[-1] == AS_STARTED, "it keeps as it was started")
        assert keeps("--node", "k0")["k0"]["lease_blocks"] == 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ttl", "soon"), "--ttl 'soon': use seconds from 0 to 604,800, or `default`"),
        (("--lease-budget", "95%"), "--lease-budget '95%' is no share of a pool"),
        (("--host-budget", "2"), "from 0 to 100%, or `default`"),
        (("--space", "nowhere"), "no such space"),
        (("--node", "x9"), "no such node"),
        (("--node", "x9", "--ttl", "5"), "there is no node 'x9'"),
    ],
)
def test_what_cannot_be_set_is_told_with_the_option(arguments: tuple[str, ...], said: str) -> None:
    result = runner.invoke(app, ["policy", *arguments])
    assert result.exit_code in (guard.TROUBLE, guard.USAGE)
    assert said in result.stderr
    assert "Traceback" not in result.output
