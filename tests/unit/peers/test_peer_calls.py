"""Client and server over real sockets, with peers that die, freeze, restart and reconnect."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    Source,
    chain,
    eventually,
    freeze,
    identity,
    pin,
    thaw,
)

from kvferry.errors import ConfigError, PeerRefused, PeerUnreachable
from kvferry.node import peer_client_session
from kvferry.node.peer_client import PeerClient, split_address
from kvferry.node.peer_server import PeerServer
from kvferry.node.wire import Abort, Done, Granted, Live, Ok, Pin, Renew, Settled


def _server(
    source: Source, *, port: int = 0, life: str = SOURCE_LIFE, **fields: object
) -> PeerServer:
    server = PeerServer(KEY, identity("d0", life), source.table, "127.0.0.1", port, **fields)
    server.start()
    return server


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def server(source: Source) -> Iterator[PeerServer]:
    server = _server(source)
    yield server
    server.close()


@pytest.fixture
def client() -> Iterator[PeerClient]:
    client = PeerClient(KEY, identity("p0", TARGET_LIFE))
    yield client
    client.close()


def _restart(server: PeerServer, source: Source, life: str = SOURCE_LIFE) -> PeerServer:
    port = int(server.address.rpartition(":")[2])
    server.close()
    return _server(source, port=port, life=life)


def test_a_whole_transfer(client: PeerClient, server: PeerServer, source: Source) -> None:
    hashes = source.offer("a", 3)
    granted = client.call(server.address, pin("t", hashes), timeout_s=BOUND_S)
    assert isinstance(granted, Granted)
    assert granted.blocks == (0, 1, 2)
    renew = Renew(transfer="t", deadline_ms=1000)
    assert client.call(server.address, renew, timeout_s=BOUND_S) == Ok()
    done = client.call(server.address, Done(transfer="t"), timeout_s=BOUND_S)
    assert done == Settled(transfer="t", intact=True)
    assert client.call(server.address, Abort(transfer="t"), timeout_s=BOUND_S) == Ok()
    assert source.how() == [("t", "intact")]
    assert source.ended[0].target == "p0"


def test_a_refusal_is_raised_with_its_reason(client: PeerClient, server: PeerServer) -> None:
    with pytest.raises(PeerRefused) as refused:
        client.call(server.address, pin("t", chain("a", 1)), timeout_s=BOUND_S)
    assert refused.value.reason == "not_held"


def test_a_reuse_between_pin_and_done_is_void(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    client.call(server.address, pin("t", source.offer("a", 3)), timeout_s=BOUND_S)
    source.table.reused(2)
    done = client.call(server.address, Done(transfer="t"), timeout_s=BOUND_S)
    assert done == Settled(transfer="t", intact=False)


def test_the_server_ends_overdue_pins_without_any_message(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    client.call(server.address, pin("t", source.offer("a", 1), deadline_ms=30), timeout_s=BOUND_S)
    assert eventually(lambda: source.how() == [("t", "deadline")])


def test_calls_of_many_threads_get_their_own_answers(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    hashes = source.offer("a", 64)

    def transfer(number: int) -> None:
        count = number % 64 + 1
        name = f"t{number}"
        granted = client.call(server.address, pin(name, hashes[:count]), timeout_s=BOUND_S)
        assert isinstance(granted, Granted)
        assert (granted.transfer, len(granted.blocks)) == (name, count)
        done = client.call(server.address, Done(transfer=name), timeout_s=BOUND_S)
        assert done == Settled(transfer=name, intact=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(transfer, range(200)))
    assert len(source.ended) == 200
    assert server.sessions == 1


def test_nobody_there_is_told_at_once(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(PeerUnreachable) as gone:
        client.call(address, Live(transfers=()), timeout_s=BOUND_S)
    assert isinstance(gone.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address_is_unreachable(client: PeerClient, address: str) -> None:
    with pytest.raises(PeerUnreachable):
        client.call(address, Live(transfers=()), timeout_s=1)


def test_addresses_of_both_kinds_are_split() -> None:
    assert split_address("d0.example:7000") == ("d0.example", 7000)
    assert split_address("[::1]:7000") == ("::1", 7000)


def test_a_peer_that_accepts_and_says_nothing_costs_no_more_than_the_timeout(
    client: PeerClient,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(PeerUnreachable):
            client.call(address, Live(transfers=()), timeout_s=0.3)
        assert 0.1 < time.monotonic() - began_s < BOUND_S / 2


def test_a_broken_session_is_replaced_and_the_call_repeated(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    hashes = source.offer("a", 1)
    client.call(server.address, pin("t", hashes), timeout_s=BOUND_S)
    again = _restart(server, source)
    try:
        done = client.call(again.address, Done(transfer="t"), timeout_s=BOUND_S)
        assert done == Settled(transfer="t", intact=True)
    finally:
        again.close()


def test_after_a_reconnect_what_the_target_does_not_list_ends(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    hashes = source.offer("a", 1)
    for name in ("living", "settled", "aborted"):
        client.call(server.address, pin(name, hashes), timeout_s=BOUND_S)
    client.call(server.address, Done(transfer="settled"), timeout_s=BOUND_S)
    client.call(server.address, Abort(transfer="aborted"), timeout_s=BOUND_S)
    # A pin that the source opened while the target gave up, and one of another process.
    source.table.pin("p0", pin("forgotten", hashes), client=client._name)
    source.table.pin("p0", pin("other-process", hashes), client="worker")
    source.ended.clear()
    again = _restart(server, source)
    try:
        client.call(again.address, pin("new", hashes), timeout_s=BOUND_S)
        assert source.how() == [("forgotten", "closed")]
        assert source.table.pins() == 3
    finally:
        again.close()


def test_losing_the_session_alone_releases_nothing(server: PeerServer, source: Source) -> None:
    client = PeerClient(KEY, identity("p0", TARGET_LIFE))
    client.call(server.address, pin("t", source.offer("a", 1)), timeout_s=BOUND_S)
    client.close()
    assert eventually(lambda: server.sessions == 0)
    assert source.table.pins() == 1


def test_another_life_of_the_source_is_refused(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    live = Live(transfers=())
    client.call(server.address, live, timeout_s=BOUND_S, incarnation=SOURCE_LIFE)
    again = _restart(server, source, life="cccccccccccccccc")
    try:
        with pytest.raises(PeerRefused, match="cccccccccccccccc") as refused:
            client.call(again.address, live, timeout_s=BOUND_S, incarnation=SOURCE_LIFE)
        assert refused.value.reason == "incarnation"
    finally:
        again.close()


def test_a_request_beyond_the_frame_limit_is_refused_and_the_session_stays(
    client: PeerClient, server: PeerServer, source: Source
) -> None:
    huge = Pin(transfer="t", incarnation="", hashes=(bytes(17 * 1024 * 1024),))
    with pytest.raises(PeerRefused) as refused:
        client.call(server.address, huge, timeout_s=BOUND_S)
    assert refused.value.reason == "protocol"
    client.call(server.address, pin("u", source.offer("a", 1)), timeout_s=BOUND_S)
    assert server.sessions == 1


def test_sessions_are_bounded_and_a_place_comes_free(source: Source) -> None:
    server = _server(source, sessions_max=2)
    clients = [PeerClient(KEY, identity(f"p{i}", TARGET_LIFE)) for i in range(3)]
    try:
        for client in clients[:2]:
            client.call(server.address, Live(transfers=()), timeout_s=BOUND_S)
        with pytest.raises(PeerRefused) as refused:
            clients[2].call(server.address, Live(transfers=()), timeout_s=BOUND_S)
        assert refused.value.reason == "busy"
        clients[0].close()
        assert eventually(lambda: server.sessions == 1)
        clients[2].call(server.address, Live(transfers=()), timeout_s=BOUND_S)
    finally:
        for client in clients:
            client.close()
        server.close()


def test_peers_are_bounded_and_the_idle_one_goes(source: Source) -> None:
    servers = [_server(source) for _ in range(3)]
    client = PeerClient(KEY, identity("p0", TARGET_LIFE), peers_max=2)
    try:
        for server in servers:
            client.call(server.address, Live(transfers=()), timeout_s=BOUND_S)
        assert eventually(lambda: [s.sessions for s in servers] == [0, 1, 1])
    finally:
        client.close()
        for server in servers:
            server.close()


def test_closing_leaves_no_thread_and_no_socket(source: Source) -> None:
    before = set(threading.enumerate())
    server = _server(source)
    clients = [PeerClient(KEY, identity(f"p{i}", TARGET_LIFE)) for i in range(4)]
    for client in clients:
        client.call(server.address, Live(transfers=()), timeout_s=BOUND_S)
    address = server.address
    server.close()
    for client in clients:
        client.close()
    assert set(threading.enumerate()) == before
    assert server.sessions == 0
    with pytest.raises(PeerUnreachable):
        clients[0].call(address, Live(transfers=()), timeout_s=1)
    with pytest.raises(PeerUnreachable):
        PeerClient(KEY, identity("p9", TARGET_LIFE)).call(address, Live(transfers=()), timeout_s=1)


def test_a_taken_port_is_a_config_error_with_the_cure(server: PeerServer, source: Source) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*choose another"):
        _server(source, port=port)


def test_an_advertised_address_replaces_the_real_one(source: Source) -> None:
    server = _server(source, advertise="d0.example:7000")
    assert server.address == "d0.example:7000"
    server.close()


class _SourceProcess:
    """A peer server in a process of its own, which offers ``chain("a", 4)``."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("source_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(BOUND_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def other() -> Iterator[_SourceProcess]:
    other = _SourceProcess()
    yield other
    other.close()


def test_a_frozen_source_costs_the_timeout_and_is_used_again_afterwards(
    client: PeerClient, other: _SourceProcess
) -> None:
    hashes = chain("a", 4)
    client.call(other.address, pin("t", hashes), timeout_s=BOUND_S)
    freeze(other.process)
    try:
        began_s = time.monotonic()
        with pytest.raises(PeerUnreachable):
            client.call(other.address, pin("u", hashes), timeout_s=0.4)
        assert time.monotonic() - began_s < BOUND_S / 2
    finally:
        thaw(other.process)
    granted = client.call(other.address, pin("u", hashes), timeout_s=BOUND_S)
    assert isinstance(granted, Granted)
    assert granted.transfer == "u"


def test_a_session_that_stalled_is_given_up_and_replaced(
    client: PeerClient, other: _SourceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_client_session, "STALLED_S", 0.1)
    client.call(other.address, pin("t", chain("a", 4)), timeout_s=BOUND_S)
    first = client._peers[other.address].session
    freeze(other.process)
    try:
        for _ in range(2):
            with pytest.raises(PeerUnreachable):
                client.call(other.address, Done(transfer="t"), timeout_s=0.3)
    finally:
        thaw(other.process)
    done = client.call(other.address, Done(transfer="t"), timeout_s=BOUND_S)
    assert done == Settled(transfer="t", intact=True)
    assert first is not None
    assert not first.alive


def test_a_killed_source_is_unreachable(client: PeerClient, other: _SourceProcess) -> None:
    client.call(other.address, pin("t", chain("a", 4)), timeout_s=BOUND_S)
    other.process.kill()
    other.process.wait(BOUND_S)
    with pytest.raises(PeerUnreachable):
        client.call(other.address, Done(transfer="t"), timeout_s=BOUND_S)
