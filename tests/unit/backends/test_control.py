"""Conversations: who may begin one, what crosses it, and that each of them ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.leftovers import nothing_stays_open

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import Authorize
from kvferry_backends.control import server as server_module
from kvferry_backends.control.calls import Call, Calls
from kvferry_backends.control.server import Asked, ControlServer, Serve
from kvferry_backends.control.wire import (
    MESSAGE_MAX_BYTES,
    PREFIX,
    Opening,
    receive_frame,
    send_frame,
)
from kvferry_backends.tcp.serving import Refusal
from kvferry_backends.tcp.stream import Stream, StreamError

WAIT_S = 20.0
Start = Callable[..., ControlServer]


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


def only_good(transfer: str, grant: bytes, packed: bytes) -> bool:
    return grant == b"good" and transfer == "t.1" and packed == b"\x03\0\0\0\x01\0\0\0"


def echo(asked: Asked) -> None:
    """Say what was asked, then each message again until one is empty."""
    asked.talk.send(f"{asked.transfer} {asked.blocks} ".encode() + asked.body)
    while body := asked.talk.receive():
        asked.talk.send(body[::-1])


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[ControlServer] = []

    def make(serve: Serve = echo, authorize: Authorize = allow, **options: float) -> ControlServer:
        made.append(
            ControlServer("echo", "life1", authorize, 8, serve, host="127.0.0.1", **options)
        )
        return made[-1]

    with nothing_stays_open():
        yield make
        for one in made:
            one.close()
            one.close()


@pytest.fixture
def calls() -> Iterator[Calls]:
    found = Calls("echo")
    yield found
    found.close()


def address(source: ControlServer) -> str:
    return f"127.0.0.1:{source.port}"


def begin(calls: Calls, source: ControlServer, *, instance: str = "life1", s: float = 10.0) -> Call:
    return calls.begin(address(source), instance, time.monotonic() + s)


def opened(calls: Calls, source: ControlServer, body: bytes = b"hello", **how: float) -> Call:
    call = begin(calls, source, **how)
    try:
        call.open(transfer="t.1", grant=b"good", blocks=[3, 1], body=body)
    except BaseException:
        call.close()
        raise
    return call


def failure(act: Callable[[], object]) -> StreamError:
    with pytest.raises(StreamError) as found:
        act()
    return found.value


def test_messages_cross_both_ways_and_connections_are_kept(start: Start, calls: Calls) -> None:
    source = start()
    seen = set()
    for nth in range(3):
        call = opened(calls, source, body=b"round %d" % nth)
        seen.add(call._stream)
        assert call.receive() == b"t.1 (3, 1) round %d" % nth
        big = os.urandom(MESSAGE_MAX_BYTES - 100)
        for said in (b"abc", big):
            call.send(said)
            assert call.receive() == said[::-1]
        call.send(b"")
        call.finish()
        call.close()
    assert len(seen) == 1


def test_several_at_once_do_not_mix(start: Start, calls: Calls) -> None:
    source = start()
    together = [opened(calls, source, body=b"%d" % nth) for nth in range(5)]
    for nth, call in enumerate(together):
        assert call.receive().endswith(b" %d" % nth)
    for nth, call in reversed(list(enumerate(together))):
        call.send(b"x%d" % nth)
        assert call.receive() == (b"x%d" % nth)[::-1]
        call.close()


@pytest.mark.parametrize(
    ("transfer", "grant", "blocks"),
    [("t.1", b"bad", [3, 1]), ("t.2", b"good", [3, 1]), ("t.1", b"good", [1, 3])],
)
def test_without_a_grant_nothing_is_served(
    start: Start, calls: Calls, transfer: str, grant: bytes, blocks: list[int]
) -> None:
    served = threading.Event()
    source = start(lambda asked: served.set(), only_good)
    call = begin(calls, source)
    error = failure(lambda: call.open(transfer=transfer, grant=grant, blocks=blocks, body=b""))
    call.close()
    assert error.error == "refused"
    assert "grant" in str(error)
    assert not served.is_set()
    # Positive control: the same server serves the right grant.
    good = opened(calls, source)
    good.finish()
    good.close()
    assert served.is_set()


def test_a_grant_that_ends_in_mid_conversation_is_noticed(start: Start, calls: Calls) -> None:
    valid = threading.Event()
    valid.set()

    def serve(asked: Asked) -> None:
        asked.permit()
        asked.talk.send(b"first")
        asked.talk.receive()
        asked.permit()
        asked.talk.send(b"second")

    source = start(serve, lambda transfer, grant, packed: valid.is_set())
    call = opened(calls, source)
    assert call.receive() == b"first"
    valid.clear()
    call.send(b"more")
    assert failure(call.receive).error == "refused"
    call.close()


def test_another_life_or_backend_or_pool_is_refused(start: Start, calls: Calls) -> None:
    source = start()
    for other, instance, blocks, word in (
        (calls, "life0", [1], "another process"),
        (Calls("nixl"), "life1", [1], "this is echo"),
        (calls, "life1", [8], "not all of a pool of 8"),
        (calls, "life1", [], "not all of a pool of 8"),
    ):
        call = other.begin(address(source), instance, time.monotonic() + WAIT_S)
        error = failure(
            lambda c=call, b=blocks: c.open(transfer="t", grant=b"", blocks=b, body=b"")
        )
        call.close()
        assert error.error == "refused"
        assert word in str(error)


def refuse(asked: Asked) -> None:
    raise Refusal("no slot is free")


def fail(asked: Asked) -> None:
    raise BackendError("the ring is broken")


def break_down(asked: Asked) -> None:
    raise KeyError("a defect")


@pytest.mark.parametrize(
    ("serve", "error", "word"),
    [
        (refuse, "refused", "no slot"),
        (fail, "error", "ring is broken"),
        (break_down, "error", "KeyError"),
    ],
)
def test_how_the_source_ends_it_is_said(
    start: Start, calls: Calls, serve: Serve, error: str, word: str
) -> None:
    source = start(serve)
    for wait in (Call.receive, Call.finish):
        call = opened(calls, source)
        found = failure(lambda c=call, w=wait: w(c))
        call.close()
        assert found.error == error
        assert word in str(found)


def test_the_reason_is_heard_by_a_target_that_goes_on_talking(start: Start, calls: Calls) -> None:
    call = opened(calls, start(refuse))
    # The source has ended it by now, and takes these words all the same.
    for _ in range(50):
        call.send(bytes(100))
        time.sleep(0.001)
    assert failure(call.receive).error == "refused"
    call.close()


def test_a_source_that_is_gone_or_silent_ends_by_its_kind(start: Start, calls: Calls) -> None:
    release = threading.Event()
    source = start(lambda asked: (release.wait(WAIT_S), None)[1])
    call = opened(calls, source, s=0.3)
    assert failure(call.receive).error == "deadline"
    call.close()
    release.set()
    waiting = opened(calls, start())
    source.close()
    late = begin(calls, source)
    assert failure(lambda: late.open(transfer="t", grant=b"", blocks=[1], body=b"")).error == (
        "unreachable"
    )
    late.close()
    waiting.close()


def test_what_was_said_is_heard_and_nothing_else(start: Start, calls: Calls) -> None:
    call = opened(calls, start())
    call.receive()
    assert not call.heard()
    assert not call.heard(0.02)
    call.send(b"abc")
    until = time.monotonic() + WAIT_S
    while not call.heard(0.001):
        assert time.monotonic() < until
    assert call.receive() == b"cba"
    assert not call.heard()
    # An end that receive() would raise is heard, too.
    call.cut()
    assert call.heard()
    assert failure(call.receive).error == "aborted"
    call.close()
    assert call.heard()


def test_a_cut_ends_the_wait_of_another_thread(start: Start, calls: Calls) -> None:
    gone = threading.Event()

    def serve(asked: Asked) -> None:
        try:
            asked.talk.receive()
        except StreamError:
            assert not asked.talk.stands()
            gone.set()
            raise

    call = opened(calls, start(serve))
    cutter = threading.Timer(0.05, call.cut)
    cutter.start()
    assert failure(call.receive).error == "aborted"
    call.close()
    call.cut()
    cutter.join()
    assert gone.wait(WAIT_S)


def test_closing_the_server_ends_conversations(start: Start, calls: Calls) -> None:
    source = start()
    call = opened(calls, source)
    call.receive()
    source.close()
    assert failure(call.receive).error == "unreachable"
    call.close()


def test_kept_connections_that_the_source_closed_are_replaced(
    start: Start, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.05)
    source = start(lambda asked: None)
    first = opened(calls, source)
    first.finish()
    first.close()
    # Unseen: the stream is taken although the source has closed it already.
    monkeypatch.setattr(Stream, "established", lambda self: True)
    until = time.monotonic() + WAIT_S
    while source._listener._serving:
        assert time.monotonic() < until
        time.sleep(0.01)
    second = opened(calls, source)
    second.finish()
    second.close()


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n\r\n", PREFIX.pack(b"KVFC", 1 << 30), PREFIX.pack(b"KVFC", 3) + b"abc"],
)
def test_what_is_no_opening_is_dropped(start: Start, junk: bytes) -> None:
    source = start()
    with socket.create_connection(("127.0.0.1", source.port), timeout=WAIT_S) as sock:
        sock.sendall(junk)
        try:
            assert sock.recv(100) == b""
        except ConnectionResetError:
            return


def test_who_says_nothing_is_dropped_soon(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "FIRST_OPENING_S", 0.1)
    source = start()
    with socket.create_connection(("127.0.0.1", source.port), timeout=WAIT_S) as sock:
        assert sock.recv(1) == b""


def test_a_message_too_long_is_an_error_here(start: Start, calls: Calls) -> None:
    call = opened(calls, start())
    with pytest.raises(BackendError, match="too long"):
        call.send(bytes(MESSAGE_MAX_BYTES))
    call.close()


def test_a_port_in_use_is_named(start: Start) -> None:
    taken = start().port
    with pytest.raises(BackendUnavailable, match="echo backend cannot listen"):
        ControlServer("echo", "l", allow, 1, echo, host="127.0.0.1", port=taken)


def test_frames_survive_the_wire() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    near = Stream(socket.create_connection(listening.getsockname()))
    far = Stream(listening.accept()[0])
    opening = Opening(
        protocol=1,
        backend="b",
        instance="i",
        transfer="t",
        grant=b"g",
        blocks=b"\0\0\0\0",
        deadline_ms=5,
        body=b"\xff",
    )
    send_frame(near, opening, time.monotonic() + WAIT_S)
    assert receive_frame(far, time.monotonic() + WAIT_S, 1000) == opening
    send_frame(near, opening, time.monotonic() + WAIT_S)
    with pytest.raises(BackendError, match="at most 10 bytes"):
        receive_frame(far, time.monotonic() + WAIT_S, 10)
    for one in (near, far, listening):
        one.close()
