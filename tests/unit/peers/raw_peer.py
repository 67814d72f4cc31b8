"""A peer that sends what it likes, and what a server must do about it."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    TARGET_LIFE,
    Source,
    identity,
    pin,
)

from kvferry.errors import PeerUnreachable
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.peers.wire import (
    PROTOCOL,
    AnyFrame,
    Granted,
    Hello,
)

ME = identity("p0", TARGET_LIFE)


def connect(server: PeerServer) -> FrameSocket:
    host, _, port = server.address.rpartition(":")
    return FrameSocket(socket.create_connection((host, int(port)), timeout=BOUND_S))


def receive(stream: FrameSocket) -> AnyFrame:
    frame = stream.receive(timeout_s=BOUND_S)
    assert frame is not None
    return frame


def call(server: PeerServer, key: bytes, me: PeerIdentity, frame: AnyFrame) -> AnyFrame:
    client = PeerClient(key, me)
    try:
        return client.call(server.address, frame, timeout_s=BOUND_S)
    finally:
        client.close()


def hello(**changes: object) -> Hello:
    hello = Hello(
        protocol=PROTOCOL,
        node="p0",
        space=ME.space,
        incarnation=TARGET_LIFE,
        nonce=os.urandom(32),
        components=ME.components,
    )
    return msgspec.structs.replace(hello, **changes)


def assert_dropped(stream: FrameSocket) -> None:
    """The server ends the connection, after a last word at most."""
    words = 0
    try:
        while stream.receive(timeout_s=BOUND_S) is not None:
            words += 1
    except PeerUnreachable:
        assert words <= 1
    else:
        pytest.fail("the connection stands")


def assert_serves(server: PeerServer, source: Source) -> None:
    hashes = source.offer("serves", 2)
    answer = call(server, KEY, ME, pin(os.urandom(4).hex(), hashes))
    assert isinstance(answer, Granted)
