"""A router in front of a ledger that demands a login, with a real nats-server that does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import httpx
import pytest
from tests.unit.ledger.support import RawServer
from tests.unit.ledger.tls import client, make_certificates, needs_openssl, serve_tls
from tests.unit.router.support import house, until

from kvferry.core.envelope import Entry
from kvferry.core.events import NodeJoined, SlotChanged, TurnEnded
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.errors import ConfigError
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import decode
from kvferry.ledger.credentials import Credentials
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ports.log import FACTS_STREAM
from kvferry_connectors.router import cli
from kvferry_connectors.router.settings import EngineUrl, RouterSettings
from kvferry_connectors.router.tilert.model import Model
from kvferry_connectors.router.tilert.opening import open_tilert
from kvferry_connectors.router.tilert.settings import TilertSettings, parse_nodes

USER, PASSWORD, INBOX = (
    "KVFERRY_NATS_USER",
    "KVFERRY_NATS_PASSWORD",
    "KVFERRY_NATS_INBOX_PREFIX",
)
RIGHT = {USER: "r0", PASSWORD: "secret", INBOX: "_INBOX.r0"}
OWNER = Credentials(user="coord", password="c")
ENGINES = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The url of a server that lets two users in; the router's has an inbox of its own only."""
    permissions = {
        "publish": {"allow": ["kvf.router.r0.>", "kvfbus.heartbeat.router.r0", "kvfbus.slots.*"]},
        "subscribe": {"allow": ["_INBOX.r0.>", "kvfbus.>", "kvf.router.coord"]},
    }
    router = {"user": "r0", "password": "secret", "permissions": permissions}
    owner = {"user": OWNER.user, "password": OWNER.password}
    server = RawServer(tmp_path, authorization={"users": [owner, router]})
    yield server.url
    server.kill()


@pytest.fixture
async def ledger(guarded: str) -> JetStreamLedger:
    return await connect(guarded, name="coordinator", credentials=OWNER)


def started_with(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str]
) -> RouterSettings:
    """What the command makes of these variables: its server is left out."""
    seen: list[RouterSettings] = []
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "run", lambda settings, *rest, **more: seen.append(settings))
    args = [*ENGINES, "--nats", url, "--node", "r0"]
    cli.app(args=args, prog_name="kvferry router", standalone_mode=False)
    return seen[0]


async def stored(ledger: JetStreamLedger) -> list[Entry]:
    found: list[Entry] = []
    async with aclosing(ledger.read(FACTS_STREAM)) as messages:
        async for message in messages:
            found += decode(message.data).entries
    return found


async def test_a_router_with_the_right_variables_records_its_turns(
    guarded: str, ledger: JetStreamLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = started_with(monkeypatch, guarded, RIGHT)
    try:
        await ledger.ensure_streams()
        who = known.nats_credentials
        async with house(nats_url=known.nats_url, node="r0", nats_credentials=who) as h:
            answer = await h.ask()
        events = [entry.event for entry in await stored(ledger)]
    finally:
        await ledger.close()
    assert isinstance(events[0], NodeJoined)
    turns = [event.request for event in events if isinstance(event, TurnEnded)]
    assert turns == [answer.headers["x-kvferry-request"]]


@pytest.mark.parametrize("variables", [{}, RIGHT | {PASSWORD: "wrong"}])
async def test_a_router_that_is_not_let_in_says_what_to_set_and_serves(
    guarded: str,
    ledger: JetStreamLedger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
) -> None:
    known = started_with(monkeypatch, guarded, variables)
    try:
        await ledger.ensure_streams()
        who = known.nats_credentials
        async with house(nats_url=known.nats_url, node="r0", nats_credentials=who) as h:
            await until(lambda: "node r0 serves without a ledger" in caplog.text)
            answer = await h.ask()
        assert answer.status_code == 200
        assert await stored(ledger) == []
    finally:
        await ledger.close()
    assert "refuses our credentials" in caplog.text
    assert USER in caplog.text
    assert "wrong" not in caplog.text


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[str]:
    """Its url; it lets in who has a certificate of its authority."""
    make_certificates(tmp_path)
    server = serve_tls(tmp_path)
    yield server.url
    server.kill()


@needs_openssl
async def test_tls_files_come_from_variables_too(
    tls_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = client(tmp_path)
    files = {
        "KVFERRY_NATS_TLS_CA": owner.tls_ca,
        "KVFERRY_NATS_TLS_CERT": owner.tls_cert,
        "KVFERRY_NATS_TLS_KEY": owner.tls_key,
    }
    stranger = started_with(monkeypatch, tls_server, {})
    known = started_with(monkeypatch, tls_server, files)
    ledger = await connect(tls_server, name="test", credentials=owner)
    try:
        await ledger.ensure_streams()
        who = stranger.nats_credentials
        async with house(nats_url=stranger.nats_url, node="r0", nats_credentials=who) as h:
            await until(lambda: "KVFERRY_NATS_TLS_CA" in caplog.text)
            assert (await h.ask()).status_code == 200
        assert await stored(ledger) == []
        who = known.nats_credentials
        async with house(nats_url=known.nats_url, node="r0", nats_credentials=who) as h:
            answer = await h.ask()
        events = [entry.event for entry in await stored(ledger)]
    finally:
        await ledger.close()
    turns = [event.request for event in events if isinstance(event, TurnEnded)]
    assert turns == [answer.headers["x-kvferry-request"]]


@pytest.mark.parametrize("let_in", [True, False])
async def test_slots_of_tilert_nodes_are_asked_for_with_the_same_login(
    guarded: str,
    ledger: JetStreamLedger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    let_in: bool,
) -> None:
    known = started_with(monkeypatch, guarded, RIGHT if let_in else {})
    settings = RouterSettings(
        prefill=(EngineUrl("p0", "http://127.0.0.1:1"),),
        decode=(EngineUrl("d0", "http://127.0.0.1:2"),),
        node="r0",
        nats_url=known.nats_url,
        nats_credentials=known.nats_credentials,
        tilert=TilertSettings(nodes=parse_nodes(["t0=http://127.0.0.1:3"]), tokenizer="unused"),
    )
    await ledger.ensure_streams()
    coordinator = Coordinator(ledger, ledger, ledger, CoordinatorSettings(cost="off"))
    leading = asyncio.create_task(coordinator.run())
    try:
        # Nothing is decoded here, so the model is never looked at.
        model = cast(Model, object())
        async with httpx.AsyncClient() as client, open_tilert(settings, model, client):
            if let_in:
                space = coordinator.projector.state.space(ROUTER_SPACE)
                await until(lambda: "t0" in space.slots.nodes)
        events = [entry.event for entry in await stored(ledger)]
    finally:
        await coordinator.stop()
        await leading
        await ledger.close()
    registered = [e for e in events if isinstance(e, SlotChanged) and e.node == "t0"]
    assert bool(registered) == let_in
    assert ("decode slots cannot be asked for" in caplog.text) == (not let_in)
    assert (USER in caplog.text) == (not let_in)


def test_a_file_that_is_not_there_is_told_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"nkey_seed_file '/nowhere/r0\.seed' cannot be read"):
        started_with(
            monkeypatch, "nats://127.0.0.1:1", {"KVFERRY_NATS_NKEY_FILE": "/nowhere/r0.seed"}
        )


def test_files_reach_the_agent_under_its_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seed = tmp_path / "r0.seed"
    seed.write_text("unread until the server asks")
    pytest.importorskip("nkeys")
    known = started_with(
        monkeypatch, "nats://127.0.0.1:1", {"KVFERRY_NATS_NKEY_FILE": str(seed), INBOX: "_INBOX.r0"}
    )
    settings = known.in_ledger()
    assert (settings.node, settings.nkey_seed_file) == ("r0", str(seed))
    assert settings.inbox_prefix == "_INBOX.r0"


def test_an_unknown_credential_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="nats_credentials: unknown entry 'usr'"):
        RouterSettings(
            prefill=(EngineUrl("p0", "http://a"),),
            decode=(EngineUrl("d0", "http://b"),),
            nats_credentials={"usr": "r0"},
        )
