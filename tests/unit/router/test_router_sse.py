"""Events are cut right wherever the network cuts the bytes."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_connectors.router.errors import RouterError
from kvferry_connectors.router.sse import EventSplitter, data_event, event_data, take_params

STREAM = (
    b'data: {"a": 1}\n\n'
    b"data: one\r\ndata: two\r\n\r\n"
    b": comment\n\n"
    b'data: {"choices": [], "kv_transfer_params": {"kvferry": {"hint": {"k": 1}}}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    splitter = EventSplitter(1000)
    whole: list[bytes] = []
    edges = [0, *cuts, len(STREAM)]
    for begin, end in itertools.pairwise(edges):
        whole += splitter.feed(STREAM[begin:end])
    assert b"".join(whole) == STREAM
    assert splitter.rest() == b""
    assert [event_data(event) for event in whole[:3]] == [b'{"a": 1}', b"one\ntwo", b""]
    assert len(whole) == 5


def test_only_the_params_are_taken() -> None:
    event = data_event({"text": "kv_transfer_params", "kv_transfer_params": {"x": 1}})
    cleaned, params = take_params(event)
    assert params == {"x": 1}
    assert json.loads(event_data(cleaned)) == {"text": "kv_transfer_params"}
    untouched = b'data:  {"text":   "kv_transfer_params"}\n\n'
    assert take_params(untouched)[1] is None
    assert json.loads(event_data(take_params(untouched)[0])) == {"text": "kv_transfer_params"}
    assert take_params(b"data: {broken kv_transfer_params\n\n") == (b"", None)
    plain = b'data: {"b":  2}\n\n'
    assert take_params(plain) == (plain, None)


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(10)
    with pytest.raises(RouterError, match="10 bytes"):
        splitter.feed(b"data: " + b"x" * 20)
