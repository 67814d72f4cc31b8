"""The reading side: connections are kept, stale ones replaced, and bounds hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.pools import Pool
from tests.unit.backends.support import WAIT_S, Source, eventually, read

from kvferry.ports.backend import ReadRequest, Verify
from kvferry_backends import digest
from kvferry_backends.tcp import connection, listener, pace, stream, wire
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.wire import decode_peer

WIDTH = 1 << 20


@pytest.fixture
def source() -> Iterator[Source]:
    pool = Pool(8, [WIDTH])
    pool.fill("kept")
    made = Source(pool)
    yield made
    made.backend.close()


@pytest.fixture
def target() -> Iterator[TcpBackend]:
    made = TcpBackend({"connections": 2})
    made.register(Pool(8, [WIDTH]).regions, lambda *call: False)
    yield made
    made.close()


def accepted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The peers that listeners admit from now on."""
    seen: list[str] = []
    admit = listener.Listener._admit

    def counting(self: listener.Listener, sock: object, peer: str) -> None:
        seen.append(peer)
        admit(self, sock, peer)  # type: ignore[arg-type]

    monkeypatch.setattr(listener.Listener, "_admit", counting)
    return seen


def test_connections_are_used_again(
    source: Source, target: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = accepted(monkeypatch)
    for nth in range(5):
        assert read(target, source, f"t.{nth}").error == ""
    assert len(seen) == 2


def test_small_reads_use_one_connection(
    source: Source, target: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = accepted(monkeypatch)
    assert read(target, source, blocks=1).error == ""
    assert len(seen) == 1


def test_connections_that_the_source_closed_are_replaced(
    source: Source, target: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.1)
    assert read(target, source, "t.1").error == ""
    eventually(lambda: source.connections() == 0, "the source closes idle connections")
    assert read(target, source, "t.2").error == ""


def test_a_connection_that_breaks_unseen_is_replaced_once(
    source: Source, target: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source closes in the very moment of the request, after the look at its state.

    One block is one part: of two parts the second may go over the first one's connection, and the
    other connection would not hear that it has to be hasty.
    """
    assert read(target, source, "t.1", blocks=1).error == ""
    monkeypatch.setattr(stream.Stream, "established", lambda self: True)
    with monkeypatch.context() as hasty:
        hasty.setattr(connection, "IDLE_S", 0.1)
        assert read(target, source, "t.2", blocks=1).error == ""
        eventually(lambda: source.connections() == 0, "the source closes idle connections")
    # Patient again: on a busy machine the replacement too would be idle for 0.1 s.
    seen = accepted(monkeypatch)
    assert read(target, source, "t.3", blocks=1).error == ""
    assert len(seen) == 1


def test_an_address_that_another_process_took_over_is_refused(target: TcpBackend) -> None:
    first = Source(Pool(8, [WIDTH]))
    port = int(decode_peer(first.backend.describe()).address.rpartition(":")[2])
    description = first.backend.describe()
    assert read(target, first).error == ""
    first.backend.close()
    second = Source(Pool(8, [WIDTH]), listen_port=port)
    posted = target.post(
        ReadRequest(
            transfer="t.2",
            peer=description,
            grant=b"",
            source_blocks=[0],
            target_blocks=[0],
            deadline_s=WAIT_S,
        )
    )
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "refused"
    assert "another process" in outcome.detail
    second.backend.close()


def test_without_xxhash_both_ends_fall_back_to_crc32(
    source: Source, target: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_DIGESTS", {"crc32": digest.by_name("crc32")})
    assert decode_peer(source.backend.describe()).digests == ("crc32",)
    outcome = read(target, source)
    assert outcome.error == ""
    assert outcome.verified_blocks >= 2


@pytest.mark.parametrize("call_blocks", [1, 3, 100])
@pytest.mark.parametrize("damaged", [None, 5])
def test_chunks_that_share_a_call_are_each_compared(
    monkeypatch: pytest.MonkeyPatch, call_blocks: int, damaged: int | None
) -> None:
    """Calls grow where each waits for the GIL; here every one seems to."""
    monkeypatch.setattr(pace, "SLOW_CALL_S", -1.0)
    monkeypatch.setattr(wire, "CALL_BYTES", call_blocks * 1000)
    pool, ours = Pool(8, [600, 400]), Pool(8, [600, 400])
    pool.fill("calls")
    source, target = Source(pool), TcpBackend({"chunk_blocks": 1, "connections": 1})
    target.register(ours.regions, lambda *call: False)
    taken = digest.by_name("xxh3_64")
    seen: list[int] = []

    def wrong_once(views: list[memoryview]) -> int:
        seen.append(len(seen))
        return taken(views) ^ (len(seen) - 1 == damaged)

    monkeypatch.setattr(digest, "_DIGESTS", {"xxh3_64": wrong_once})
    outcome = read(target, source, blocks=8, verify=Verify.FULL)
    if damaged is None:
        assert outcome.error == ""
        assert outcome.verified_blocks == 8
        assert [ours.get(block) for block in range(8)] == [pool.get(block) for block in range(8)]
    else:
        assert outcome.error == "digest"
    target.close()
    source.backend.close()


def test_a_refusal_between_two_chunks_of_a_call_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source sends block 0, blocks 1 and 2, then no; the target asks for two at a time."""
    monkeypatch.setattr(pace, "SLOW_CALL_S", -1.0)
    monkeypatch.setattr(wire, "CALL_BYTES", 2000)
    answers = iter([True, True, False])
    pool = Pool(8, [1000])
    pool.fill("calls")
    source = Source(pool, lambda *call: next(answers))
    target = TcpBackend({"chunk_blocks": 1, "connections": 1})
    target.register(Pool(8, [1000]).regions, lambda *call: False)
    outcome = read(target, source, blocks=8)
    assert outcome.error == "refused"
    assert "grant" in outcome.detail
    target.close()
    source.backend.close()
