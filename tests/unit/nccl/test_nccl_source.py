"""A source answers targets that ask for nonsense, disagree, or leave, and keeps nothing of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.nccl.conftest import WAIT_S, End, Make
from tests.unit.nccl.host_device import until

from kvferry.errors import BackendError
from kvferry_backends.control.calls import Call, Calls
from kvferry_backends.nccl.messages import (
    PROTOCOL,
    Go,
    PeerDescription,
    Want,
    decode,
    encode,
)
from kvferry_backends.pairing import decode_description
from kvferry_backends.tcp.stream import StreamError


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls("nccl")
    yield made
    made.close()


def asked(calls: Calls, source: End, body: bytes, wait_s: float = WAIT_S) -> Call:
    """A conversation about blocks 0 and 1, begun with ``body``."""
    peer = decode_description(source.backend.describe(), PeerDescription, PROTOCOL, "nccl")
    call = calls.begin(peer.address, peer.instance, time.monotonic() + wait_s)
    call.open(transfer="raw", grant=b"", blocks=[0, 1], body=body)
    return call


def want(**changes: object) -> Want:
    good: dict[str, object] = {
        "protocol": PROTOCOL,
        "target": "raw",
        "widths": (4096,),
        "chunk_blocks": 2,
        **changes,
    }
    return Want(**good)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"protocol": 99}, "protocol 99"),
        ({"widths": (2048, 2048)}, "layouts differ"),
        ({"chunk_blocks": 0}, "chunks of 0"),
        ({"chunk_blocks": 1000}, "chunks of 1000"),
    ],
)
def test_what_cannot_be_is_refused(
    make: Make, calls: Calls, wrong: dict[str, object], reason: str
) -> None:
    source = make(Pool(4, [4096]))
    call = asked(calls, source, encode(want(**wrong)))
    with pytest.raises(StreamError, match=reason) as refused:
        call.receive()
    assert refused.value.error == "refused"
    call.close()
    assert source.device.opened == []


def test_nonsense_is_an_error(make: Make, calls: Calls) -> None:
    source = make(Pool(4, [4096]))
    call = asked(calls, source, b"nonsense")
    with pytest.raises(StreamError, match="not a Want") as failed:
        call.receive()
    assert failed.value.error == "error"
    call.close()


@pytest.mark.parametrize("leaving", ["closes", "falls silent"])
def test_a_target_that_leaves_after_the_go_frees_its_communicator(
    make: Make, calls: Calls, leaving: str
) -> None:
    source = make(Pool(4, [4096]))
    call = asked(calls, source, encode(want()), WAIT_S if leaving == "closes" else 2.5)
    go = decode(call.receive(), Go)
    assert (go.number, len(go.unique_id)) == (0, 16)
    until(lambda: len(source.device.opened) == 1)
    assert source.device.live == 1
    if leaving == "closes":
        call.close()
    until(lambda: source.device.live == 0)
    call.close()


def test_a_token_or_number_that_is_not_known_makes_a_new_communicator(
    make: Make, calls: Calls
) -> None:
    source, target = make(Pool(4, [4096])), make(Pool(4, [4096]))
    source.pool.fill("s")
    peer = source.backend.describe()
    assert target.post(peer, [0], [0]).wait(WAIT_S)
    source_side = source.backend._source
    assert source_side is not None
    (link,) = source_side._resting.values()
    for body in (want(link="unknown", number=1), want(link=link.token, number=7)):
        call = asked(calls, source, encode(body))
        go = decode(call.receive(), Go)
        assert go.link not in ("unknown", link.token)
        assert go.unique_id
        call.close()
    until(lambda: source.device.live == 0)
    # The target's own idea of the pair is out of date now, which costs it a new start, no error.
    outcome = target.post(peer, [1], [1]).wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    assert target.pool.get(1) == pattern("s", 1, 4096)
    assert target.device.live == 1


def test_the_messages_of_another_kind_are_no_messages() -> None:
    with pytest.raises(BackendError, match="not a Go message"):
        decode(encode(want()), Go)
