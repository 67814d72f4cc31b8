"""Client and server over real sockets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    TARGET_LIFE,
    Source,
    chain,
    eventually,
    identity,
    pin,
    serve,
)

from kvferry.errors import ConfigError, PeerRefused, PeerUnreachable
from kvferry.node.peers.client import PeerClient, split_address
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.wire import Abort, Done, Granted, Live, Ok, Pin, Renew, Settled


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


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address_is_unreachable(client: PeerClient, address: str) -> None:
    with pytest.raises(PeerUnreachable):
        client.call(address, Live(transfers=()), timeout_s=1)


def test_addresses_of_both_kinds_are_split() -> None:
    assert split_address("d0.example:7000") == ("d0.example", 7000)
    assert split_address("[::1]:7000") == ("::1", 7000)


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
    server = serve(source, sessions_max=2)
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
    servers = [serve(source) for _ in range(3)]
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
    server = serve(source)
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
        serve(source, port=port)


def test_an_advertised_address_replaces_the_real_one(source: Source) -> None:
    server = serve(source, advertise="d0.example:7000")
    assert server.address == "d0.example:7000"
    server.close()
