"""The serving side against peers that are wrong, slow, idle or too many."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from tests.contract.pools import Pool
from tests.unit.backends.support import (
    Source,
    ask,
    eventually,
    read,
    until_closed,
)

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import Authorize
from kvferry_backends.tcp import connection
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.wire import HEAD_BYTES, MAGIC, encode_part

Make = Callable[..., Source]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Source] = []

    def source(
        blocks: int = 8,
        width: int = 1000,
        authorize: Authorize = lambda transfer, grant, packed: True,
        **options: object,
    ) -> Source:
        pool = Pool(blocks, [width])
        pool.fill("raw")
        made.append(Source(pool, authorize, **options))
        return made[-1]

    yield source
    for one in made:
        one.backend.close()


def test_a_good_request_is_answered(make: Make) -> None:
    """Positive control for the refusals below."""
    source = make()
    reason, data = ask(source, source.part())
    assert reason == ""
    assert data == source.pool.get(0) + source.pool.get(1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": 99}, "protocol 99"),
        ({"instance": "another life"}, "another process"),
        ({"widths": (500, 500)}, "layouts"),
        ({"digest": "sha1"}, "sha1"),
        ({"blocks": b"abc"}, "malformed"),
        ({"blocks": b"", "stop": 0}, "range"),
        ({"start": 1, "stop": 1}, "range"),
        ({"start": -1}, "range"),
        ({"stop": 3}, "range"),
        ({"chunk_blocks": 0}, "range"),
        ({"blocks": struct.pack("<2I", 0, 8)}, "block 8 of a pool of 8"),
    ],
)
def test_a_wrong_request_is_refused_by_name_and_gets_no_byte(
    make: Make, changes: dict[str, object], reason: str
) -> None:
    source = make()
    said, data = ask(source, source.part(**changes))
    assert reason in said
    assert data == b""


def test_the_check_sees_the_whole_granted_list_for_every_part(make: Make) -> None:
    seen: list[tuple[str, bytes, bytes]] = []

    def note(transfer: str, grant: bytes, packed: bytes) -> bool:
        seen.append((transfer, grant, packed))
        return True

    source = make(authorize=note)
    packed = struct.pack("<4I", 7, 3, 1, 0)
    reason, data = ask(source, source.part(blocks=packed, start=1, stop=3, chunk_blocks=1))
    assert reason == ""
    assert len(data) == 2 * 1000 + HEAD_BYTES
    assert data[:1000] == source.pool.get(3)
    assert set(seen) == {("t.raw", b"grant", packed)}
    assert len(seen) == 2


def test_a_permission_that_ends_in_mid_read_ends_the_sending(make: Make) -> None:
    # However long the first call takes: it sends one chunk, and the second asks once, for whatever
    # it would send.
    answers = iter([True, False])
    source = make(authorize=lambda *call: next(answers))
    target = TcpBackend({"chunk_blocks": 1, "connections": 1})
    pool = Pool(8, [1000])
    target.register(pool.regions, lambda *call: False)
    outcome = read(target, source)
    assert outcome.error == "refused"
    assert "grant" in outcome.detail
    assert pool.get(0) == source.pool.get(0)
    assert pool.get(1) == Pool(8, [1000]).get(1)
    target.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n",
        MAGIC + struct.pack("!I", 0xFFFFFFFF),
        MAGIC + struct.pack("!I", 65536 + 4 * 8 + 1),
        MAGIC + struct.pack("!I", 4) + b"\xc1\xc1\xc1\xc1",
        MAGIC + struct.pack("!I", 1) + b"\x90 and more",
        bytes(200_000),
    ],
)
def test_garbage_is_dropped_without_an_answer(make: Make, garbage: bytes) -> None:
    source = make()
    with source.connect() as sock:
        try:
            sock.sendall(garbage)
        except OSError:
            pass  # dropped while we were still sending
        else:
            assert until_closed(sock) == b""
    eventually(lambda: source.connections() == 0, "the connection is dropped")
    assert ask(source, source.part())[0] == ""


def test_who_asks_nothing_is_dropped_soon(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_REQUEST_S", 0.2)
    source = make()
    silent, halting = source.connect(), source.connect()
    halting.sendall(encode_part(source.part())[:20])
    for sock in (silent, halting):
        assert until_closed(sock) == b""
        sock.close()


def test_a_reader_that_takes_nothing_is_dropped(make: Make) -> None:
    source = make(blocks=64, width=1 << 20, timeout_s=0.5)
    with source.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        blocks = struct.pack("<64I", *range(64))
        sock.sendall(encode_part(source.part(blocks=blocks, stop=64, deadline_ms=3_600_000)))
        eventually(lambda: source.connections() == 1, "the request is being served")
        eventually(lambda: source.connections() == 0, "the slow reader is dropped")


def test_a_reader_that_dies_in_mid_answer_harms_nobody_else(make: Make) -> None:
    source = make(blocks=64, width=1 << 20)
    sock = source.connect()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    blocks = struct.pack("<64I", *range(64))
    sock.sendall(encode_part(source.part(blocks=blocks, stop=64)))
    assert sock.recv(HEAD_BYTES)
    sock.close()  # a reset, as from a killed process
    eventually(lambda: source.connections() == 0, "its connection is dropped")
    assert ask(source, source.part())[0] == ""


def test_a_port_that_is_taken_is_named(make: Make) -> None:
    taken = make()
    port = int(taken.peer.address.rpartition(":")[2])
    second = TcpBackend({"listen_port": port})
    with pytest.raises(BackendUnavailable, match=f"{port}.*listen_port"):
        second.register(Pool(1, [1]).regions, lambda *call: True)
    second.close()


def test_a_backend_has_one_pool_in_its_life(make: Make) -> None:
    source = make()
    with pytest.raises(BackendError, match="new one"):
        source.backend.register(Pool(1, [1]).regions, lambda *call: True)
    fresh = TcpBackend()
    with pytest.raises(BackendError, match="register"):
        fresh.describe()
    fresh.close()
    fresh.close()
