"""Real sockets: what a peer sends ends at most its own session."""

from __future__ import annotations

import struct
import time

import pytest
from tests.unit.peers.raw_peer import (
    ME,
    assert_dropped,
    assert_serves,
    connect,
    hello,
    receive,
)
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    Source,
    chain,
    eventually,
    pin,
)

from kvferry.errors import CodecError
from kvferry.node.peers import session
from kvferry.node.peers.frames import FrameSocket, encode_frame
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.wire import (
    MAX_FRAME_BYTES,
    Granted,
    Pin,
    Proof,
    Refused,
)


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
        encode_frame(hello(nonce=b"short")),
        encode_frame(Pin(transfer="t", incarnation="", hashes=chain("a", 1))),
        struct.pack(">I", 60_000) + b"\x91" * 60_000,
    ],
)
def test_garbage_ends_its_connection_and_nothing_else(
    server: PeerServer, source: Source, data: bytes
) -> None:
    stream = connect(server)
    stream._sock.sendall(data)
    assert_dropped(stream)
    stream.close()
    assert_serves(server, source)


@pytest.mark.parametrize("begun", [b"", b"\x00\x00", struct.pack(">I", 100) + b"\x91"])
def test_an_unauthenticated_peer_that_stalls_is_dropped(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    assert session.HANDSHAKE_S <= 5
    monkeypatch.setattr(session, "HANDSHAKE_S", 0.3)
    stream = connect(server)
    stream._sock.sendall(begun)
    began_s = time.monotonic()
    assert_dropped(stream)
    assert time.monotonic() - began_s < 4
    stream.close()
    assert eventually(lambda: server.sessions == 0)


def _admitted(server: PeerServer) -> FrameSocket:
    stream = connect(server)
    session.greet(stream, KEY, ME, "raw", BOUND_S)
    return stream


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        encode_frame(hello()),
        encode_frame(Proof(proof=b"")),
    ],
)
def test_an_authenticated_peer_that_breaks_the_rules_ends_its_own_session(
    server: PeerServer, source: Source, data: bytes
) -> None:
    good = _admitted(server)
    bad = _admitted(server)
    bad._sock.sendall(data)
    assert_dropped(bad)
    bad.close()
    good.send(pin("t", source.offer("a", 1)))
    assert isinstance(receive(good), Granted)
    good.close()


def test_a_frame_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(CodecError, match="exceeds"):
        encode_frame(Refused(reason="x" * (MAX_FRAME_BYTES + 1)))
