"""Against a real nats-server: a snapshot that cannot be used is discarded, and the log says why."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.support import SPACE, running, until
from tests.unit.replay.writer import write_conversation

from kvferry.core.digest import digest
from kvferry.ledger.append import Outgoing
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ledger.objects import ROLLUP, _chunk_subject, _meta_subject
from kvferry.ledger.streams import OBJECTS_STREAM
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to
from kvferry.replay.reading import message_at
from kvferry.replay.snapshots import CATALOGUE, Catalogue, read_catalogue, write_snapshot


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[JetStreamLedger]:
    with EmbeddedServer(tmp_path / "store") as server:
        connection = await connect(server.url, name="test")
        await connection.ensure_streams()
        yield connection
        await connection.close()


async def rewrite(ledger: JetStreamLedger, **changes: Any) -> None:
    (entry,) = (await read_catalogue(ledger)).entries
    listed = Catalogue((msgspec.structs.replace(entry, **changes),))
    await ledger.put(CATALOGUE, msgspec.msgpack.encode(listed))


async def spoil_chunks(ledger: JetStreamLedger, name: str) -> None:
    """Another byte behind the object's own: what is stored does not fit its digest."""
    info = await ledger._objects._info(name)
    assert info is not None
    await ledger._appender.store([Outgoing(_chunk_subject(info.nuid), b"\xff", {})])


async def harm_bytes(ledger: JetStreamLedger, name: str) -> None:
    await spoil_chunks(ledger, name)


async def harm_description(ledger: JetStreamLedger, name: str) -> None:
    await ledger._appender.store([Outgoing(_meta_subject(name), b"\xff", ROLLUP)])


async def harm_gone(ledger: JetStreamLedger, name: str) -> None:
    await ledger.delete(name)


async def harm_content(ledger: JetStreamLedger, name: str) -> None:
    await ledger.put(name, b"\x00" * 40)


async def harm_older(ledger: JetStreamLedger, name: str) -> None:
    await rewrite(ledger, fingerprint="0123456789abcdef", writer="0.0.7")


async def harm_future(ledger: JetStreamLedger, name: str) -> None:
    await rewrite(ledger, fingerprint="fedcba9876543210", writer="9.1.0")


async def harm_ahead(ledger: JetStreamLedger, name: str) -> None:
    await rewrite(ledger, position=10_000)


async def harm_other(ledger: JetStreamLedger, name: str) -> None:
    await rewrite(ledger, stored_ms=1)


async def harm_list(ledger: JetStreamLedger, name: str) -> None:
    await spoil_chunks(ledger, CATALOGUE)


async def harm_list_description(ledger: JetStreamLedger, name: str) -> None:
    await harm_description(ledger, CATALOGUE)


HARMS = {
    harm_bytes: "is damaged",
    harm_description: "description of object",
    harm_gone: "its object is gone",
    harm_content: "not a snapshot",
    harm_older: "kvferry 0.0.7 wrote it with schema 0123456789abcdef",
    harm_future: "kvferry 9.1.0 wrote it with schema fedcba9876543210",
    harm_ahead: "the stream ends at",
    harm_other: "another message",
    harm_list: "the list of checkpoints cannot be read",
    harm_list_description: "the list of checkpoints cannot be read",
}


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_it_is_discarded_named_and_replaced_by_the_next(
    ledger: JetStreamLedger, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await write_conversation(ledger)
    whole = await fold_to(ledger, from_snapshot=False)
    # What is stored says something else than the ledger, so that using it would show.
    wrong = msgspec.structs.replace(whole, spaces={})
    message = await message_at(ledger, FACTS_STREAM, whole.position)
    assert message is not None
    entry = await write_snapshot(ledger, wrong, message.stored_ms, keep_max=2, first=1)
    async with running(ledger, silent_after_s=60.0) as trusting:
        assert SPACE not in trusting.projector.state.spaces
    await harm(ledger, entry.object)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await ledger.ensure_streams()
        async with running(ledger, silent_after_s=60.0) as coordinator:
            await coordinator.projector.reached(whole.position, 20.0)
            state = coordinator.projector.state
            if state.position == whole.position:
                assert digest(state) == digest(whole)
            assert set(state.spaces) >= set(whole.spaces)
            await until(lambda: coordinator.decider.leads(SPACE), "it leads")
            assert await coordinator.checkpoints.write() is not None
    assert HARMS[harm] in caplog.text
    newest = (await read_catalogue(ledger)).entries[0]
    assert newest.position >= whole.position
    assert digest(await fold_to(ledger)) == digest(await fold_to(ledger, from_snapshot=False))


async def test_half_written_objects_of_a_damaged_description_are_swept(
    ledger: JetStreamLedger,
) -> None:
    await ledger.put("one", b"x" * 300_000)
    await harm_description(ledger, "one")
    assert await ledger._objects.sweep(older_than_s=-1.0) == 1
    info = await ledger._api.call(f"STREAM.INFO.{OBJECTS_STREAM}")
    assert info["state"]["messages"] == 1, "only the damaged description is left"
    await ledger.put("one", b"y")
    assert await ledger.get("one") == b"y"
