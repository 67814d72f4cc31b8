"""Real sockets: who is let in, and what happens to the others."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    Source,
    chain,
    eventually,
    identity,
    pin,
)

from kvferry.errors import CodecError, PeerError, PeerRefused, PeerUnreachable
from kvferry.node import session
from kvferry.node.peer_client import PeerClient
from kvferry.node.peer_server import PeerServer
from kvferry.node.session import PeerIdentity, describe_mismatch
from kvferry.node.session_frames import FrameSocket, encode_frame
from kvferry.node.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    AnyFrame,
    Challenge,
    Granted,
    Hello,
    Live,
    Pin,
    Proof,
    Refused,
)

ME = identity("p0", TARGET_LIFE)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def server(source: Source) -> Iterator[PeerServer]:
    server = PeerServer(KEY, identity("d0", SOURCE_LIFE), source.table)
    server.start()
    yield server
    server.close()


def _connect(server: PeerServer) -> FrameSocket:
    host, _, port = server.address.rpartition(":")
    return FrameSocket(socket.create_connection((host, int(port)), timeout=BOUND_S))


def _receive(stream: FrameSocket) -> AnyFrame:
    frame = stream.receive(timeout_s=BOUND_S)
    assert frame is not None
    return frame


def _call(server: PeerServer, key: bytes, me: PeerIdentity, frame: AnyFrame) -> AnyFrame:
    client = PeerClient(key, me)
    try:
        return client.call(server.address, frame, timeout_s=BOUND_S)
    finally:
        client.close()


def _hello(**changes: object) -> Hello:
    hello = Hello(
        protocol=PROTOCOL,
        node="p0",
        space=ME.space,
        incarnation=TARGET_LIFE,
        nonce=os.urandom(32),
        components=ME.components,
    )
    return msgspec.structs.replace(hello, **changes)


def _assert_dropped(stream: FrameSocket) -> None:
    """The server ends the connection, after a last word at most."""
    words = 0
    try:
        while stream.receive(timeout_s=BOUND_S) is not None:
            words += 1
    except PeerUnreachable:
        assert words <= 1
    else:
        pytest.fail("the connection stands")


def _assert_serves(server: PeerServer, source: Source) -> None:
    hashes = source.offer("serves", 2)
    answer = _call(server, KEY, ME, pin(os.urandom(4).hex(), hashes))
    assert isinstance(answer, Granted)


def test_a_node_of_the_space_is_served(server: PeerServer, source: Source) -> None:
    _assert_serves(server, source)


def test_another_key_is_refused_by_name(server: PeerServer, source: Source) -> None:
    with pytest.raises(PeerRefused, match="KVFERRY_KEY_FILE") as refused:
        _call(server, bytes(32), ME, Live(transfers=()))
    assert refused.value.reason == "bad_key"
    _assert_serves(server, source)


def test_a_client_that_skips_the_servers_proof_is_refused(server: PeerServer) -> None:
    stream = _connect(server)
    stream.send(_hello())
    assert isinstance(_receive(stream), Challenge)
    stream.send(Proof(proof=os.urandom(32)))
    answer = _receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    _assert_dropped(stream)
    stream.close()


def test_the_servers_own_proof_sent_back_is_refused(server: PeerServer) -> None:
    stream = _connect(server)
    stream.send(_hello())
    challenge = _receive(stream)
    assert isinstance(challenge, Challenge)
    stream.send(Proof(proof=challenge.proof))
    answer = _receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    stream.close()


def test_a_space_mismatch_names_each_component_that_differs(server: PeerServer) -> None:
    me = identity("p0", TARGET_LIFE, "other-space", block_size="32", dtype="fp8", model="same")
    with pytest.raises(PeerRefused) as refused:
        _call(server, KEY, me, Live(transfers=()))
    assert refused.value.reason == "space_mismatch"
    assert "block_size: 32 here, 16 there" in refused.value.detail
    assert "dtype: fp8 here, missing there" in refused.value.detail


def test_equal_components_are_not_named() -> None:
    theirs = identity("d0", SOURCE_LIFE, "x", a="1", b="2")
    assert describe_mismatch(_hello(components={"a": "1", "b": "3"}), theirs) == (
        "b: 3 here, 2 there"
    )
    same = _hello(space="y", components={"a": "1", "b": "2"})
    assert describe_mismatch(same, theirs) == "space: y here, x there"


def test_a_stranger_learns_nothing_of_the_components(server: PeerServer) -> None:
    stream = _connect(server)
    stream.send(_hello(space="other", components={"block_size": "99"}))
    assert isinstance(_receive(stream), Challenge)
    stream.send(Proof(proof=bytes(32)))
    answer = _receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    assert "block_size" not in answer.detail
    stream.close()


class _Recorder:
    """A proxy that keeps every byte that the client sent."""

    def __init__(self, server: PeerServer) -> None:
        host, _, port = server.address.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = b""
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        upstream = socket.create_connection(self._server)
        back = threading.Thread(target=self._copy, args=(upstream, client, False))
        back.start()
        self._copy(client, upstream, True)
        back.join(BOUND_S)
        client.close()
        upstream.close()

    def _copy(self, source: socket.socket, target: socket.socket, record: bool) -> None:
        while data := source.recv(65536):
            if record:
                self.sent += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._threads[0].join(BOUND_S)
        self._listener.close()


def test_a_recorded_session_cannot_be_replayed(server: PeerServer, source: Source) -> None:
    hashes = source.offer("a", 2)
    recorder = _Recorder(server)
    client = PeerClient(KEY, ME)
    client.call(recorder.address, pin("genuine", hashes), timeout_s=BOUND_S)
    client.close()
    recorder.close()
    assert source.table.pins() == 1
    assert b"genuine" in recorder.sent

    replayed = recorder.sent.replace(b"genuine", b"another")
    host, _, port = server.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=BOUND_S)
    sock.sendall(replayed)
    stream = FrameSocket(sock)
    assert isinstance(_receive(stream), Challenge)
    answer = _receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    stream.close()
    assert source.table.pins() == 1


def test_a_server_without_the_key_gets_no_proof_from_us() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    got: list[object] = []

    def impostor() -> None:
        stream = FrameSocket(listener.accept()[0])
        hello = stream.receive(timeout_s=BOUND_S)
        assert isinstance(hello, Hello)
        stream.send(
            Challenge(
                node="d0",
                space=ME.space,
                incarnation=SOURCE_LIFE,
                nonce=bytes(32),
                proof=bytes(32),
            )
        )
        try:
            got.append(stream.receive(timeout_s=BOUND_S))
        except PeerError:
            got.append("nothing")
        stream.close()

    thread = threading.Thread(target=impostor)
    thread.start()
    client = PeerClient(KEY, ME)
    with pytest.raises(PeerRefused) as refused:
        client.call(f"127.0.0.1:{listener.getsockname()[1]}", Live(transfers=()), timeout_s=BOUND_S)
    thread.join(BOUND_S)
    client.close()
    listener.close()
    assert refused.value.reason == "bad_key"
    assert got == ["nothing"]


def test_another_protocol_version_is_refused(server: PeerServer) -> None:
    stream = _connect(server)
    stream.send(_hello(protocol=99))
    answer = _receive(stream)
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.detail) == ("protocol", f"99 here, {PROTOCOL} there")
    stream.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack(">I", 0),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", session.HANDSHAKE_FRAME_BYTES_MAX + 1),
        struct.pack(">I", 6) + b"\x81\xa4type\xa0",
        encode_frame(Proof(proof=bytes(32))),
        encode_frame(_hello(nonce=b"short")),
        encode_frame(Pin(transfer="t", incarnation="", hashes=chain("a", 1))),
        struct.pack(">I", 60_000) + b"\x91" * 60_000,
    ],
)
def test_garbage_ends_its_connection_and_nothing_else(
    server: PeerServer, source: Source, data: bytes
) -> None:
    stream = _connect(server)
    stream._sock.sendall(data)
    _assert_dropped(stream)
    stream.close()
    _assert_serves(server, source)


@pytest.mark.parametrize("begun", [b"", b"\x00\x00", struct.pack(">I", 100) + b"\x91"])
def test_an_unauthenticated_peer_that_stalls_is_dropped(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    assert session.HANDSHAKE_S <= 5
    monkeypatch.setattr(session, "HANDSHAKE_S", 0.3)
    stream = _connect(server)
    stream._sock.sendall(begun)
    began_s = time.monotonic()
    _assert_dropped(stream)
    assert time.monotonic() - began_s < 4
    stream.close()
    assert eventually(lambda: server.sessions == 0)


def _admitted(server: PeerServer) -> FrameSocket:
    stream = _connect(server)
    session.greet(stream, KEY, ME, "raw", BOUND_S)
    return stream


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        encode_frame(_hello()),
        encode_frame(Proof(proof=b"")),
    ],
)
def test_an_authenticated_peer_that_breaks_the_rules_ends_its_own_session(
    server: PeerServer, source: Source, data: bytes
) -> None:
    good = _admitted(server)
    bad = _admitted(server)
    bad._sock.sendall(data)
    _assert_dropped(bad)
    bad.close()
    good.send(pin("t", source.offer("a", 1)))
    assert isinstance(_receive(good), Granted)
    good.close()


def test_a_frame_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(CodecError, match="exceeds"):
        encode_frame(Refused(reason="x" * (MAX_FRAME_BYTES + 1)))
