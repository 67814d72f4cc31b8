"""Memory by address over real sockets: every byte arrives in its place, however calls are cut."""

from __future__ import annotations

import random
import socket
import threading
import time

import pytest
from tests.contract.pools import Pool, snapshot, wrong_bytes
from tests.unit.backends.support import WAIT_S

from kvferry_backends.layout import HostPool
from kvferry_backends.tcp import vectors
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.vectors import IOV_MAX, Vectors

BLOCKS = 3 * IOV_MAX


def streams() -> tuple[Stream, Stream]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    return Stream(near), Stream(far)


def message(pool: Pool, blocks: list[int], head: bytearray) -> Vectors:
    made = Vectors()
    made.add(head)
    made.add_blocks(HostPool(pool.regions), blocks)
    return made


@pytest.mark.parametrize("iov_max", [IOV_MAX, 7])
def test_more_pieces_than_a_call_takes_arrive_in_their_places(
    monkeypatch: pytest.MonkeyPatch, iov_max: int
) -> None:
    monkeypatch.setattr(vectors, "IOV_MAX", iov_max)
    source, target = Pool(BLOCKS, [64, 33], gap=3), Pool(BLOCKS, [64, 33], gap=3)
    source.fill("vectors")
    before = snapshot(target)
    chance = random.Random(1)
    sent, got = chance.sample(range(BLOCKS), BLOCKS - 9), chance.sample(range(BLOCKS), BLOCKS - 9)
    near, far = streams()
    deadline = time.monotonic() + WAIT_S
    sending = threading.Thread(
        target=near.send_vectors, args=(message(source, sent, bytearray(b"head")), deadline)
    )
    sending.start()
    head = bytearray(4)
    far.receive_vectors(message(target, got, head), deadline)
    sending.join(WAIT_S)
    assert head == b"head"
    expected = {t: source.get(s) for s, t in zip(sent, got, strict=True)}
    assert wrong_bytes(before, target, expected) == ([], False)
    swapped = expected | {got[0]: source.get(sent[1])}
    assert wrong_bytes(before, target, swapped)[0] == [got[0]]
    near.close()
    far.close()


def test_a_stream_that_ends_early_says_how_much_came() -> None:
    target = Pool(4, [100])
    near, far = streams()
    deadline = time.monotonic() + WAIT_S
    near.send([memoryview(bytes(250))], deadline)
    near.close()
    with pytest.raises(StreamError, match="closed") as failed:
        far.receive_vectors(message(target, [3, 1, 0], bytearray(4)), deadline)
    assert failed.value.error == "unreachable"
    assert failed.value.moved == 250
    assert target.get(3) == bytes(100)
    assert target.get(2) == Pool(4, [100]).get(2)
    far.close()


def test_a_stalled_call_ends_at_the_deadline() -> None:
    near, far = streams()
    with pytest.raises(StreamError) as failed:
        far.receive_vectors(message(Pool(4, [100]), [1], bytearray(4)), time.monotonic() + 0.1)
    assert failed.value.error == "deadline"
    near.close()
    far.close()
