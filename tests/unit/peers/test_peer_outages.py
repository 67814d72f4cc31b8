"""Peers that die, freeze, restart and reconnect, over real sockets and processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
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
    serve,
    thaw,
)

from kvferry.errors import PeerRefused, PeerUnreachable
from kvferry.node.peers import client_session, silence
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.wire import Abort, Done, Granted, Live, Pin, Settled


def _restart(server: PeerServer, source: Source, life: str = SOURCE_LIFE) -> PeerServer:
    port = int(server.address.rpartition(":")[2])
    server.close()
    return serve(source, port=port, life=life)


def test_nobody_there_is_told_at_once(client: PeerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(PeerUnreachable) as gone:
        client.call(address, Live(transfers=()), timeout_s=BOUND_S)
    assert isinstance(gone.value.__cause__, ConnectionRefusedError)


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
    assert eventually(lambda: _granted(client, other.address, pin("u", hashes)))


def _granted(client: PeerClient, address: str, frame: Pin) -> bool:
    """Whether it is granted; not so while the peer counts as silent."""
    try:
        answer = client.call(address, frame, timeout_s=BOUND_S)
    except PeerUnreachable:
        return False
    assert isinstance(answer, Granted)
    assert answer.transfer == frame.transfer
    return True


def test_a_frozen_source_costs_one_pin_its_wait_and_not_those_after_it(
    client: PeerClient, other: _SourceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 10 * BOUND_S)
    client.call(other.address, pin("t", chain("a", 4)), timeout_s=BOUND_S)
    freeze(other.process)
    try:
        with pytest.raises(PeerUnreachable, match="does not answer"):
            client.call(other.address, pin("u", chain("a", 4)), timeout_s=1.5)
        began_s = time.monotonic()
        for number in range(20):
            with pytest.raises(PeerUnreachable, match="a moment ago"):
                client.call(other.address, pin(f"v{number}", chain("a", 4)), timeout_s=BOUND_S)
        # What settles a transfer is waited for all the same.
        with pytest.raises(PeerUnreachable, match="does not answer"):
            client.call(other.address, Done(transfer="t"), timeout_s=0.4)
        assert time.monotonic() - began_s < BOUND_S / 2
    finally:
        thaw(other.process)
    # Its late answers show that it lives, long before its silence would be over.
    assert eventually(lambda: _granted(client, other.address, pin("w", chain("a", 4))))


def test_one_caller_at_a_time_tries_a_silent_address() -> None:
    one = silence.Silence()
    assert one.may_ask(1.0)
    one.unanswered(silence.WAITED_MIN_S / 2, 1.0)
    assert one.may_ask(1.0)
    one.unanswered(silence.WAITED_MIN_S, 1.0)
    over_s = 1.0 + silence.SILENT_S
    assert [one.may_ask(now_s) for now_s in (1.1, over_s, over_s + 0.1)] == [False, True, False]
    one.answered()
    assert one.may_ask(over_s + 0.1)


def test_a_session_that_stalled_is_given_up_and_replaced(
    client: PeerClient, other: _SourceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "STALLED_S", 0.1)
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
