"""What a server forbids, and what is not there, said in time and by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.ledger.support import RawServer, free_port, read_all, within

from kvferry.errors import ConfigError, LedgerRefused, LedgerUnavailable
from kvferry.ledger import append
from kvferry.ledger.append import Outgoing
from kvferry.ledger.credentials import Credentials, servers_of, without_secrets
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ledger.subjects import blocks_subject, facts_subject
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM

OWN, FOREIGN = facts_subject("s", "p0"), facts_subject("s", "d0")
NODE = Credentials(user="p0", password="secret")


@pytest.fixture
def guarded_server(tmp_path: Path) -> Iterator[RawServer]:
    """A user for the coordinator, and one that may write as node p0 only."""
    node = {
        "user": "p0",
        "password": "secret",
        "permissions": {
            "publish": {"allow": ["kvf.*.p0.>", "kvfbus.>"]},
            "subscribe": {"allow": ["_INBOX.p0.>", "kvfbus.>"]},
        },
    }
    users = [{"user": "coord", "password": "c"}, node]
    server = RawServer(tmp_path, authorization={"users": users})
    yield server
    server.kill()


@pytest.fixture
async def guarded_url(guarded_server: RawServer) -> str:
    owner = Credentials(user="coord", password="c")
    ledger = await connect(guarded_server.url, name="coordinator", credentials=owner)
    await ledger.ensure_streams()
    await ledger.close()
    return guarded_server.url


async def test_a_forbidden_subject_is_refused_and_said_once(
    guarded_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = await connect(guarded_url, name="p0", credentials=NODE, inbox_prefix="_INBOX.p0")
    try:
        assert await ledger.append(OWN, b"mine", message_id="1") == 1
        for _ in range(2):
            started = time.monotonic()
            with pytest.raises(LedgerRefused, match=FOREIGN):
                await ledger.append_many([(OWN, b"mine", "1"), (FOREIGN, b"forged", "2")])
            assert time.monotonic() - started < append.STALL_MAX_S / 2
        assert caplog.text.count("forbids publish") == 1
        with pytest.raises(LedgerRefused, match=r"JS\.API"):
            await ledger.bounds(FACTS_STREAM)
        assert ledger.connected()
        assert await ledger.append(OWN, b"still mine", message_id="3") == 2
    finally:
        await ledger.close()


async def test_a_forbidden_inbox_fails_the_connect_by_name(guarded_url: str) -> None:
    with pytest.raises(LedgerRefused, match="inbox_prefix"):
        await connect(guarded_url, name="p0", credentials=NODE)
    assert len(asyncio.all_tasks()) == 1


async def test_wrong_credentials_are_refused(guarded_url: str) -> None:
    wrong = Credentials(user="p0", password="wrong")
    for credentials in (wrong, None):
        with pytest.raises(LedgerRefused, match="credentials"):
            await connect(guarded_url, name="p0", credentials=credentials)
    with pytest.raises(LedgerRefused) as refused:
        await connect(guarded_url.replace("//", "//p0:wrong@"), name="p0")
    assert "wrong" not in str(refused.value)


async def test_an_url_where_nobody_listens_fails_with_url_cause_and_cure() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable) as failed:
        await connect(url, name="test", timeout_s=2.0)
    assert time.monotonic() - started < 10
    for part in (url, "Connect call failed", "kvferry up"):
        assert part in str(failed.value)
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_says_nothing_fails_in_time() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    async with mute:
        with pytest.raises(LedgerUnavailable, match=r"no answer within 0\.3 s"):
            await within(connect(f"nats://127.0.0.1:{port}", name="test", timeout_s=0.3), 10)


async def test_the_second_server_of_a_list_is_used(server: EmbeddedServer) -> None:
    url = f"nats://127.0.0.1:{free_port()},{server.url}"
    ledger = await connect(url, name="test")
    assert ledger.connected()
    await ledger.close()


async def test_a_missing_stream_says_who_creates_it(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "NO_STREAM_MAX_S", 0.3)
    ledger = await connect(server.url, name="test")
    try:
        with pytest.raises(LedgerUnavailable, match="creates the streams"):
            await ledger.append(OWN, b"", message_id="1")
        for asked in (ledger.bounds(FACTS_STREAM), read_all(ledger, FACTS_STREAM)):
            with pytest.raises(LedgerRefused, match="no stream KVF"):
                await asked
        with pytest.raises(LedgerRefused, match="no stream KVF"):
            await ledger.last_of_subject(OWN)
    finally:
        await ledger.close()


async def test_a_stream_of_somebody_else_is_not_touched(server: EmbeddedServer) -> None:
    ledger = await connect(server.url, name="test")
    try:
        theirs = {"name": FACTS_STREAM, "subjects": ["orders.>"], "storage": "file"}
        await ledger._api.call(f"STREAM.CREATE.{FACTS_STREAM}", theirs)
        with pytest.raises(LedgerRefused, match=r"orders\.>"):
            await ledger.ensure_streams()
    finally:
        await ledger.close()


async def test_overlapping_subjects_are_refused_with_the_servers_words(
    server: EmbeddedServer,
) -> None:
    ledger = await connect(server.url, name="test")
    try:
        theirs = {"name": "OTHER", "subjects": ["kvf.>"], "storage": "file"}
        await ledger._api.call("STREAM.CREATE.OTHER", theirs)
        with pytest.raises(LedgerRefused, match="overlap"):
            await ledger.ensure_streams()
    finally:
        await ledger.close()


async def test_bounds_of_streams_are_set_and_set_again(ledger: JetStreamLedger) -> None:
    await ledger.ensure_streams(facts_max_bytes=1 << 20, blocks_max_bytes=1 << 21)
    for stream, size, age_s in (
        (FACTS_STREAM, 1 << 20, 7 * 86_400),
        (BLOCKS_STREAM, 1 << 21, 3600),
    ):
        config = (await ledger._api.call(f"STREAM.INFO.{stream}"))["config"]
        assert config["max_bytes"] == size
        assert config["max_age"] == age_s * 1_000_000_000
        assert (config["storage"], config["discard"]) == ("file", "old")
        assert config["duplicate_window"] == 120_000_000_000


async def test_a_message_larger_than_the_server_takes_is_refused(ledger: JetStreamLedger) -> None:
    with pytest.raises(LedgerRefused, match="max_payload"):
        await ledger.append(blocks_subject("s", "p0"), bytes(2 << 20), message_id="1")
    assert ledger.connected()


async def test_objects_that_do_not_fit_are_refused_and_leave_no_chunks(
    ledger: JetStreamLedger,
) -> None:
    await ledger.ensure_streams(objects_max_bytes=1 << 20)
    await ledger.put("small", b"kept")
    with pytest.raises(LedgerRefused, match="maximum bytes"):
        await ledger.put("big", bytes(4 << 20))
    assert await ledger.get("big") is None
    assert await ledger.get("small") == b"kept"
    assert (await ledger.bounds("OBJ_KVF_OBJECTS")).last > 2
    state = (await ledger._api.call("STREAM.INFO.OBJ_KVF_OBJECTS"))["state"]
    assert state["messages"] == 2


async def test_chunks_of_a_writer_that_died_are_swept_and_no_others(
    ledger: JetStreamLedger,
) -> None:
    await ledger.put("kept", b"k" * 300_000)
    stray = [Outgoing("$O.KVF_OBJECTS.C.dead", b"x", {"Nats-Msg-Id": str(i)}) for i in range(3)]
    await ledger._appender.store(stray)
    assert await ledger._objects.sweep() == 0
    assert await ledger._objects.sweep(older_than_s=-60.0) == 1
    assert await ledger.get("kept") == b"k" * 300_000
    state = (await ledger._api.call("STREAM.INFO.OBJ_KVF_OBJECTS"))["state"]
    assert state["messages"] == 4


@pytest.mark.parametrize("url", ["", " , ", "http://127.0.0.1:1", "nats://:4222", "nats://h:99999"])
def test_an_url_that_cannot_be_one_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="such as nats://"):
        servers_of(url)


def test_secrets_do_not_show() -> None:
    assert without_secrets("nats://u:p@h:1,tls://t@k:2,x:3") == "nats://h:1,tls://k:2,x:3"
    assert "secret" not in repr(NODE)
    assert repr(NODE) == "Credentials(user, password)"


@pytest.mark.parametrize(
    ("credentials", "named"),
    [
        (Credentials(password="x"), "user"),
        (Credentials(nkey_seed_file="a", creds_file="b"), "exclude"),
        (Credentials(creds_file="/nonexistent/creds"), "/nonexistent/creds"),
        (Credentials(tls_ca="/nonexistent/ca"), "/nonexistent/ca"),
        (Credentials(tls_cert="/nonexistent/cert"), "tls_key"),
    ],
)
async def test_unusable_credentials_are_named(credentials: Credentials, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        await connect("nats://127.0.0.1:1", name="test", credentials=credentials)
