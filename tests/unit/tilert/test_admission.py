"""Asking a node for admission: what is checked, when it is asked again, and when it ends.

The nodes here are scripted, for what a published server never says; the real server's answers are
in ``tests/tilert``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from kvferry_connectors.tilert.admission import Wanted, admit
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Shape
from kvferry_connectors.tilert.profiles import BF16, find
from kvferry_connectors.tilert.wire import Admit, Answer, Hello, receive, send

GOOD = Hello(
    magic="tilert-pd",
    protocol_version=2,
    layout_version=51,
    transport="nixl",
    max_seq_len=100,
    senders=8,
    kv_base=1,
    pe_base=2,
    ki_base=3,
    nixl_meta="eA==",
)
YES = Answer(accepted=True, rid="r", rank=2, generation=7)
BUSY = Answer(accepted=False, error="busy", busy_rid="q", busy_state="transferring")


class Scripted:
    """A node that says ``hello`` and then one of ``answers`` to each connection, the last one for
    ever; None says nothing at all."""

    def __init__(self, hello: Hello | None, *answers: Answer | None) -> None:
        self.heard: list[Admit] = []
        self._hello = hello
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            connection.settimeout(10)
            with contextlib.suppress(SendRefused):
                if self._hello is None:
                    continue
                send(connection, self._hello)
                self.heard.append(receive(connection, Admit))
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is not None:
                    send(connection, answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._connections:
            connection.close()
        self._thread.join(20)


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def one(hello: Hello | None, *answers: Answer | None) -> Scripted:
        made.append(Scripted(hello, *answers))
        return made[-1]

    yield one
    for node in made:
        node.close()


def wanted(port: int, *, window_s: float = 0.0, timeout_s: float = 20.0) -> Wanted:
    shape = Shape(profile=find("dsv32"), form=BF16, tokens=100, block_tokens=64)
    return Wanted(
        host="127.0.0.1",
        port=port,
        rid="r",
        shape=shape,
        transport="nixl",
        senders=8,
        last_prompt_token=5,
        prompt_token_ids=(4, 5),
        timeout_s=timeout_s,
        window_s=window_s,
    )


def refusal(asked: Wanted, rank: int = 2) -> SendRefused:
    with pytest.raises(SendRefused) as refused:
        admit(asked, rank, threading.Event())
    return refused.value


def test_an_admitted_rank_knows_its_generation(scripted: Callable[..., Scripted]) -> None:
    node = scripted(GOOD, YES)
    admitted = admit(wanted(node.port), 2, threading.Event())
    admitted.connection.close()
    assert (admitted.rank, admitted.generation, admitted.hello.senders) == (2, 7, 8)
    assert node.heard[0].seq_len == 100
    assert node.heard[0].prompt_token_ids == ()  # Only rank 0 sends them.
    first = scripted(GOOD, msgspec.structs.replace(YES, rank=0))
    admit(wanted(first.port), 0, threading.Event()).connection.close()
    assert first.heard[0].prompt_token_ids == (4, 5)


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        ({"magic": "tilert-pp"}, "wrong_magic", "tilert-pp"),
        ({"protocol_version": 3}, "protocol_version", "version 3"),
        ({"transport": "mooncake"}, "transport", "--transport nixl"),
        ({"layout_version": 11}, "layout_version", "51"),
        ({"senders": 1}, "sender_count", "TILERT_PD_SENDERS"),
        ({"max_seq_len": 99}, "sequence_too_long", "takes 99"),
    ],
)
def test_a_node_that_cannot_take_it_is_not_even_asked(
    scripted: Callable[..., Scripted], changes: dict[str, object], reason: str, named: str
) -> None:
    node = scripted(msgspec.structs.replace(GOOD, **changes), YES)
    refused = refusal(wanted(node.port, window_s=30.0))
    assert refused.reason == reason
    assert named in refused.detail
    assert node.heard == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (BUSY, "busy"),
        (Answer(accepted=False, error="cancelling"), "cancelling"),
        (Answer(accepted=False, error="duplicate_rank"), "duplicate_rank"),
        (Answer(accepted=False, error="seq_len exceeds max_seq_len"), "sequence_too_long"),
        (Answer(accepted=False, error="full moon"), "not_admitted"),
        (msgspec.structs.replace(YES, rid="s"), "bad_frame"),
        (msgspec.structs.replace(YES, rank=3), "bad_frame"),
        (msgspec.structs.replace(YES, generation=-1), "bad_frame"),
        (None, "timeout"),
    ],
)
def test_each_answer_but_yes_has_a_name(
    scripted: Callable[..., Scripted], answer: Answer | None, reason: str
) -> None:
    timeout_s = 0.3 if answer is None else 20.0
    assert refusal(wanted(scripted(GOOD, answer).port, timeout_s=timeout_s)).reason == reason


def test_a_node_that_says_nothing_or_is_not_there_is_refused(
    scripted: Callable[..., Scripted],
) -> None:
    assert refusal(wanted(scripted(None).port, timeout_s=0.3)).reason == "timeout"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert refusal(wanted(port)).reason == "unreachable"


def test_a_busy_node_is_asked_again_within_the_window(scripted: Callable[..., Scripted]) -> None:
    node = scripted(GOOD, BUSY, BUSY, YES)
    admit(wanted(node.port, window_s=30.0), 2, threading.Event()).connection.close()
    assert len(node.heard) == 3
    assert {asked.admission_window_s for asked in node.heard} == {30.0}


def test_a_busy_node_is_not_asked_for_ever(scripted: Callable[..., Scripted]) -> None:
    node = scripted(GOOD, BUSY)
    began = time.monotonic()
    assert refusal(wanted(node.port, window_s=2.0)).reason == "busy"
    assert time.monotonic() - began > 2.0
    assert 2 <= len(node.heard) <= 8  # After 0.1, 0.2, 0.4, 0.8 s, and what is left.


def test_waiting_for_a_busy_node_ends_at_once_when_told(
    scripted: Callable[..., Scripted],
) -> None:
    node, stop = scripted(GOOD, BUSY), threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(SendRefused) as refused:
        admit(wanted(node.port, window_s=300.0), 2, stop)
    assert refused.value.reason == "cancelled"
