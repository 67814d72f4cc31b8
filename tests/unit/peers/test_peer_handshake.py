"""Real sockets: who is let in, and what happens to the others."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from tests.unit.peers.raw_peer import (
    ME,
    assert_dropped,
    assert_serves,
    call,
    connect,
    hello,
    receive,
)
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    Source,
    identity,
    pin,
)

from kvferry.errors import PeerRefused, PeerUnreachable
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import describe_mismatch
from kvferry.node.peers.wire import (
    PROTOCOL,
    Challenge,
    Hello,
    Live,
    Proof,
    Refused,
)


def test_a_node_of_the_space_is_served(server: PeerServer, source: Source) -> None:
    assert_serves(server, source)


def test_another_key_is_refused_by_name(server: PeerServer, source: Source) -> None:
    with pytest.raises(PeerRefused, match="KVFERRY_KEY_FILE") as refused:
        call(server, bytes(32), ME, Live(transfers=()))
    assert refused.value.reason == "bad_key"
    assert_serves(server, source)


def test_a_client_that_skips_the_servers_proof_is_refused(server: PeerServer) -> None:
    stream = connect(server)
    stream.send(hello())
    assert isinstance(receive(stream), Challenge)
    stream.send(Proof(proof=os.urandom(32)))
    answer = receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    assert_dropped(stream)
    stream.close()


def test_the_servers_own_proof_sent_back_is_refused(server: PeerServer) -> None:
    stream = connect(server)
    stream.send(hello())
    challenge = receive(stream)
    assert isinstance(challenge, Challenge)
    stream.send(Proof(proof=challenge.proof))
    answer = receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    stream.close()


def test_a_space_mismatch_names_each_component_that_differs(server: PeerServer) -> None:
    me = identity("p0", TARGET_LIFE, "other-space", block_size="32", dtype="fp8", model="same")
    with pytest.raises(PeerRefused) as refused:
        call(server, KEY, me, Live(transfers=()))
    assert refused.value.reason == "space_mismatch"
    assert "block_size: 32 here, 16 there" in refused.value.detail
    assert "dtype: fp8 here, missing there" in refused.value.detail


def test_equal_components_are_not_named() -> None:
    theirs = identity("d0", SOURCE_LIFE, "x", a="1", b="2")
    assert describe_mismatch(hello(components={"a": "1", "b": "3"}), theirs) == (
        "b: 3 here, 2 there"
    )
    same = hello(space="y", components={"a": "1", "b": "2"})
    assert describe_mismatch(same, theirs) == "space: y here, x there"


def test_a_stranger_learns_nothing_of_the_components(server: PeerServer) -> None:
    stream = connect(server)
    stream.send(hello(space="other", components={"block_size": "99"}))
    assert isinstance(receive(stream), Challenge)
    stream.send(Proof(proof=bytes(32)))
    answer = receive(stream)
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
    assert isinstance(receive(stream), Challenge)
    answer = receive(stream)
    assert isinstance(answer, Refused)
    assert answer.reason == "bad_key"
    stream.close()
    assert source.table.pins() == 1


def _meet_impostor(client: PeerClient, challenge: Challenge) -> tuple[str, list[object]]:
    """Call a server that answers every hello with this challenge; returns what it heard next."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[object] = []

    def serve() -> None:
        stream = FrameSocket(listener.accept()[0])
        assert isinstance(stream.receive(timeout_s=BOUND_S), Hello)
        stream.send(challenge)
        try:
            heard.append(stream.receive(timeout_s=BOUND_S))
        except PeerUnreachable:
            heard.append("nothing")
        stream.close()

    thread = threading.Thread(target=serve)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(PeerRefused) as refused:
        client.call(address, Live(transfers=()), timeout_s=BOUND_S)
    thread.join(BOUND_S)
    listener.close()
    return refused.value.reason, heard


def test_a_server_without_the_key_gets_no_proof_from_us(client: PeerClient) -> None:
    made_up = Challenge(
        node="d0", space=ME.space, incarnation=SOURCE_LIFE, nonce=bytes(32), proof=bytes(32)
    )
    assert _meet_impostor(client, made_up) == ("bad_key", ["nothing"])


def test_a_recorded_challenge_does_not_make_an_impostor_genuine(
    client: PeerClient, server: PeerServer
) -> None:
    stream = connect(server)
    stream.send(hello(client=client._name))
    recorded = receive(stream)
    stream.close()
    assert isinstance(recorded, Challenge)
    assert _meet_impostor(client, recorded) == ("bad_key", ["nothing"])


def test_another_protocol_version_is_refused(server: PeerServer) -> None:
    stream = connect(server)
    stream.send(hello(protocol=99))
    answer = receive(stream)
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.detail) == ("protocol", f"99 here, {PROTOCOL} there")
    stream.close()
