"""Frames of TileRT's control protocol over a real socket, and what is wrong with bad ones."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_connectors.tilert.errors import REASONS, SendRefused
from kvferry_connectors.tilert.wire import (
    FRAME_MAX_BYTES,
    Admit,
    Answer,
    Done,
    Hello,
    await_end,
    decode,
    encode,
    receive,
    send,
)

HELLO = {
    "magic": "tilert-pd",
    "protocol_version": 2,
    "layout_version": 11,
    "transport": "nixl",
    "max_seq_len": 4096,
    "busy": False,
    "nixl_meta": "aGVsbG8=",
    "nixl_dev": 0,
    "senders": 8,
    "kv_base": 140_000_000_000_000,
    "pe_base": 140_000_000_100_000,
    "ki_base": 140_000_000_200_000,
}
"""As an unmodified server sends it."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.2)
    with ours, theirs:
        yield ours, theirs


def framed(value: object) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack("!I", len(body)) + body


def test_a_servers_hello_is_read_and_what_is_new_in_it_ignored(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.sendall(framed({**HELLO, "news": [1]}))
    hello = receive(ours, Hello)
    assert (hello.senders, hello.layout_version, hello.nshards) == (8, 11, 1)
    theirs.sendall(framed({**HELLO, "nshards": 2, "kv_base": [1, 2]}))
    assert receive(ours, Hello).kv_base == [1, 2]


def test_what_we_send_is_what_the_server_reads(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    send(ours, Admit(rid="r", rank=3, seq_len=7, last_prompt_token=5, admission_window_s=3.0))
    (length,) = struct.unpack("!I", theirs.recv(4))
    assert json.loads(theirs.recv(length)) == {
        "rid": "r",
        "rank": 3,
        "seq_len": 7,
        "last_prompt_token": 5,
        "admission_window_s": 3.0,
    }
    send(ours, Done(rid="r", rank=3, generation=9))
    (length,) = struct.unpack("!I", theirs.recv(4))
    said = json.loads(theirs.recv(length))
    assert said == {"rid": "r", "rank": 3, "generation": 9, "done": True}


def test_both_answers_are_read() -> None:
    accepted = decode(b'{"accepted": true, "rid": "r", "rank": 0, "generation": 4}', Answer)
    assert (accepted.accepted, accepted.generation) == (True, 4)
    said = {"accepted": False, "error": "busy", "busy_rid": "q", "busy_state": "transferring"}
    assert decode(json.dumps(said).encode(), Answer).busy_rid == "q"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack("!I", FRAME_MAX_BYTES + 1), "bad_frame"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_frame"),
        (struct.pack("!I", 4) + b"\xff\xfe\xfd\xfc", "bad_frame"),
        (framed([1, 2]), "bad_frame"),
        (framed({**HELLO, "senders": "eight"}), "bad_frame"),
        (framed({**HELLO, "kv_base": None}), "bad_frame"),
        (framed({"protocol_version": 2}), "bad_frame"),
        (framed(HELLO)[:-1], "timeout"),
        (b"", "timeout"),
    ],
)
def test_what_is_no_hello_is_refused_by_name(
    ends: tuple[socket.socket, socket.socket], sent: bytes, reason: str
) -> None:
    ours, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(SendRefused) as refused:
        receive(ours, Hello)
    assert refused.value.reason == reason


def test_a_connection_that_breaks_in_mid_message_is_unreachable(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    theirs.sendall(framed(HELLO)[:-1])
    theirs.close()
    with pytest.raises(SendRefused) as refused:
        receive(ours, Hello)
    assert refused.value.reason == "unreachable"


def test_a_node_that_hangs_up_has_read_what_it_was_told(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    await_end(ours)  # In no hurry: told all the same.
    theirs.close()
    await_end(ours)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        gone.settimeout(5.0)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()  # As a process that is killed with something unread.
        with gone, pytest.raises(SendRefused) as refused:
            await_end(gone)
    assert refused.value.reason == "unreachable"


def test_a_message_above_the_bound_is_not_sent() -> None:
    admit = Admit(
        rid="r",
        rank=0,
        seq_len=1,
        last_prompt_token=1,
        admission_window_s=1.0,
        prompt_token_ids=tuple(range(3_000_000)),
    )
    with pytest.raises(SendRefused, match="16777216"):
        encode(admit)


def test_every_reason_is_explained() -> None:
    for reason in REASONS:
        assert SendRefused(reason).detail == REASONS[reason]


def outcome(body: bytes, kind: type[Hello] | type[Answer]) -> str:
    """The kind of message that ``body`` is, or why it is none."""
    try:
        return type(decode(body, kind)).__name__
    except SendRefused as refused:
        return refused.reason


values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers())
objects = st.dictionaries(st.sampled_from([*HELLO, "accepted", "rid", "rank"]), values)


@given(st.binary(max_size=200) | objects.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_make_anything_but_a_message_or_a_refusal(body: bytes) -> None:
    assert outcome(body, Hello) in ("Hello", "bad_frame")
    assert outcome(body, Answer) in ("Answer", "bad_frame")


def test_both_outcomes_are_possible() -> None:
    assert outcome(json.dumps(HELLO).encode(), Hello) == "Hello"
    assert outcome(json.dumps(HELLO).encode(), Answer) == "bad_frame"
