"""Nodes that log in with nkeys under the permissions of deploy/nats/users.conf."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.processes import Process, wait_until
from tests.unit.node_agent.support import (
    SPACE,
    assert_contiguous,
    free_port,
    identity,
    offer,
    running,
    settings,
    stored,
    until,
)

from kvferry.core.messages import PlanAnswer, PlanRequest
from kvferry.core.slots_messages import slots_subject
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.errors import LedgerRefused
from kvferry.ledger.credentials import Credentials
from kvferry.ledger.jetstream import connect
from kvferry.ledger.server_process import find_binary, health
from kvferry.ledger.subjects import facts_subject
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.slots import REPLIED, SlotClient, SlotNode, SlotTiming
from kvferry.replay.audit.live.run import LiveAudit

nkeys = pytest.importorskip("nkeys")

USERS = Path(__file__).parents[3] / "deploy" / "nats" / "users.conf"


USERS_OF_CONF = ("coordinator", "p0", "d0", "r0")


class Guarded:
    """A nats-server that lets only the users of users.conf in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        public = {f"{name.upper()}_NKEY": self._key(name) for name in USERS_OF_CONF}
        self._key("stranger")
        port, monitor = free_port(), free_port()
        self.url = f"nats://127.0.0.1:{port}"
        path = folder / "server.conf"
        config = {
            "host": "127.0.0.1",
            "port": port,
            "http": f"127.0.0.1:{monitor}",
            "jetstream": {"store_dir": str(folder), "max_file_store": 1 << 30},
        }
        (folder / "users.conf").write_text(USERS.read_text())
        path.write_text(json.dumps(config)[1:-1] + "\ninclude users.conf\n")
        command = [find_binary(), "-c", str(path)]
        self.process = Process(command, folder / "nats.log", env=public)
        wait_until(lambda: health(monitor) == "", "the server is healthy")

    def seed(self, name: str) -> str:
        """The file with that user's seed."""
        return str(self._folder / f"{name}.seed")

    def _key(self, name: str) -> str:
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        Path(self.seed(name)).write_bytes(seed)
        return str(nkeys.from_seed(seed).public_key.decode())


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    server = Guarded(tmp_path)
    yield server
    server.process.close()


async def test_nodes_work_within_their_permissions_and_not_beyond(guarded: Guarded) -> None:
    ledger = await connect(
        guarded.url,
        name="coordinator",
        credentials=Credentials(nkey_seed_file=guarded.seed("coordinator")),
    )
    await ledger.ensure_streams(
        facts_max_bytes=64 << 20, blocks_max_bytes=64 << 20, objects_max_bytes=8 << 20
    )
    coordinator = Coordinator(ledger, ledger, ledger, CoordinatorSettings(cost="off"))
    task = asyncio.create_task(coordinator.run())
    try:
        outboxes = {"p0": Outbox(), "d0": Outbox()}
        kept = offer("o1", 4)
        with (
            running(_as(guarded, "d0"), outboxes["d0"]) as d0,
            running(_as(guarded, "p0"), outboxes["p0"]) as p0,
        ):
            d0.join(identity("d0" * 8, address="127.0.0.1:7", backends=("tcp",)))
            p0.join(identity("a0" * 8, backends=("tcp",)))
            outboxes["d0"].facts(kept)
            nodes = coordinator.projector.state.space(SPACE).nodes
            await until(lambda: set(nodes) == {"p0", "d0"}, "both joined")
            await until(
                lambda: set(coordinator.projector.state.space(SPACE).offers) == {"o1"}, "the offer"
            )
            await until(p0.plans.available, "a coordinator is heard")
            got: list[tuple[PlanAnswer | None, str]] = []
            request = PlanRequest(
                space=SPACE,
                node="p0",
                hashes=kept.hashes,
                stride=1,
                block_size=128,
                prompt_tokens=600,
            )
            p0.plans.ask(request, lambda answer, miss: got.append((answer, miss)))
            await until(lambda: got, "a plan")
            answer = got[0][0]
            assert answer is not None
            assert [one.node for one in answer.candidates] == ["d0"]
            await until(lambda: (SPACE, "p0") in coordinator.liveness.lives, "p0 is heard")
            lives = await LiveAudit(ledger, ledger).run()
            assert (lives.agreed, lives.offers, lives.findings) == (("d0", "p0"), 1, ())
        for name in ("p0", "d0"):
            assert_contiguous(await stored(ledger, node=name))
        await _is_kept_within(guarded)
        await _a_router_gets_a_slot(guarded)
    finally:
        await coordinator.stop()
        await task
        await ledger.close()


async def _is_kept_within(guarded: Guarded) -> None:
    """A node's own login writes its own subject and no other; who is not known gets in nowhere."""
    own = await connect(
        guarded.url,
        name="p0",
        credentials=Credentials(nkey_seed_file=guarded.seed("p0")),
        inbox_prefix="_INBOX.p0",
    )
    try:
        assert await own.append(facts_subject(SPACE, "p0"), b"x", message_id="t1") > 0
        with pytest.raises(LedgerRefused, match="forbids"):
            await own.append(facts_subject(SPACE, "d0"), b"x", message_id="t2")
        with pytest.raises(LedgerRefused, match="forbids"):
            await own.request("kvfbus.query.anybody", b"{}", 20.0)
        with pytest.raises(LedgerRefused, match="forbids"):
            await own.request(slots_subject("anybody"), b"x", 20.0)
    finally:
        await own.close()
    for inbox in ("_INBOX", "_INBOX.d0"):
        with pytest.raises(LedgerRefused, match="inbox_prefix"):
            await connect(
                guarded.url,
                name="p0",
                credentials=Credentials(nkey_seed_file=guarded.seed("p0")),
                inbox_prefix=inbox,
            )
    with pytest.raises(LedgerRefused, match="credentials"):
        await connect(
            guarded.url,
            name="stranger",
            credentials=Credentials(nkey_seed_file=guarded.seed("stranger")),
        )


async def _a_router_gets_a_slot(guarded: Guarded) -> None:
    """A router's login lets it ask for decode slots, hear of free ones, and nothing of engines."""
    slots = SlotClient(
        _as(guarded, "r0"), "a" * 16, timing=SlotTiming(ask_within_s=20.0, end_within_s=20.0)
    )
    await slots.start()
    try:
        await until(slots.available, "the router hears a leader")
        await slots.register([SlotNode(name="t0", http="http://127.0.0.1:9", control="h:1")])
        slot = await slots.acquire(["t0"], "a")
        freed = asyncio.create_task(slots.freed(20.0))
        assert await slots.end(slot, REPLIED)
        assert await freed
    finally:
        await slots.close()
    own = await connect(
        guarded.url,
        name="r0",
        credentials=Credentials(nkey_seed_file=guarded.seed("r0")),
        inbox_prefix="_INBOX.r0",
    )
    try:
        with pytest.raises(LedgerRefused, match="forbids"):
            await own.append(facts_subject(SPACE, "r0"), b"x", message_id="t3")
        with pytest.raises(LedgerRefused, match="forbids"):
            await own.request("kvfbus.plan.anybody", b"x", 20.0)
    finally:
        await own.close()


def _as(guarded: Guarded, name: str) -> NodeSettings:
    return settings(
        guarded.url,
        node=name,
        nkey_seed_file=guarded.seed(name),
        inbox_prefix=f"_INBOX.{name}",
        plan_deadline_ms=20_000.0,
    )
