"""What claims a request, and under which name its KV travels."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.marks import Mark, claims, read
from kvferry_connectors.tilert.rid import response_id, rid_of, router_rid


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"kvferry": {"hint": "x"}},
        {"do_remote_decode": True, "remote_host": "10.0.0.7"},
        {"tilert_ctrl_port": 5556},
        {"tilert_host": ""},
        {"tilert": None},
    ],
)
def test_without_a_mark_a_request_is_none_of_ours(params: Any) -> None:
    assert claims(params) is False


def test_our_mark_is_read() -> None:
    params = {"tilert": {"host": "n0", "port": 6000, "rid": "turn-7"}, "kvferry": {}}
    assert claims(params)
    assert read(params) == Mark(host="n0", port=6000, rid="turn-7")


def test_the_originals_mark_is_read() -> None:
    params = {"tilert_host": "n0", "tilert_ctrl_port": "6000", "sampling": {"top_k": 1}}
    assert claims(params)
    assert read(params) == Mark(host="n0", port=6000, sampling={"top_k": 1})
    assert read({"tilert_host": "n0"}).port == 5556


def test_of_both_marks_ours_counts() -> None:
    assert read({"tilert_host": "theirs", "tilert": {"host": "ours"}}).host == "ours"


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"tilert": {"port": 1}}, "host"),
        ({"tilert": {"host": "n", "port": "many"}}, "port"),
        ({"tilert": {"host": "n", "port": 0}}, "'n':0"),
        ({"tilert": {"host": "n", "port": 65536}}, "65536"),
        ({"tilert": {"host": "n", "prot": 1}}, "prot"),
        ({"tilert": "n:5556"}, "object"),
        ({"tilert": {"host": "n", "rid": "r" * 513}}, "512"),
        ({"tilert_host": ["n"]}, "host"),
        ({"tilert_host": "n", "tilert_ctrl_port": None}, "port"),
    ],
)
def test_a_mark_that_cannot_be_read_claims_and_is_refused(params: Any, named: str) -> None:
    assert claims(params)
    with pytest.raises(SendRefused, match=named) as refused:
        read(params)
    assert refused.value.reason == "bad_mark"


@pytest.mark.parametrize(
    ("response", "engine"),
    [
        ("chatcmpl-8f2e6b4d9c0a4e4d8d1f0a7b3c5d9e11", "chatcmpl-{}-1a2b3c4d"),
        ("chatcmpl-agent-cafe", "chatcmpl-{}-1a2b3c4d"),
        ("cmpl-agent-cafe", "cmpl-{}-0-1a2b3c4d"),
        ("cmpl-order-12", "cmpl-{}-0-1a2b3c4d"),
        ("cmpl-x", "cmpl-{}-11-1a2b3c4d"),
    ],
)
def test_the_engines_id_leads_to_the_routers_name(response: str, engine: str) -> None:
    given = response.partition("-")[2]
    assert response_id(engine.format(given)) == response
    assert rid_of(engine.format(given)) == router_rid(response)


def test_cutting_the_engines_id_by_the_routers_rule_would_miss_it() -> None:
    # What the original does: its router waits for "agent", its connector sends "agent-cafe".
    assert router_rid("chatcmpl-agent-cafe") == "agent"
    assert router_rid("chatcmpl-agent-cafe-1a2b3c4d") == "agent-cafe"


def test_without_the_random_suffix_nothing_random_is_cut() -> None:
    assert response_id("chatcmpl-agent-deadbeef", randomized=False) == "chatcmpl-agent-deadbeef"
    assert response_id("cmpl-agent-deadbeef-0", randomized=False) == "cmpl-agent-deadbeef"


words = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=40)


@given(words, st.integers(0, 999), st.sampled_from(["chatcmpl", "cmpl"]), st.integers(0, 2**32 - 1))
def test_every_engines_id_leads_back_to_its_response(
    name: str, number: int, kind: str, random: int
) -> None:
    response = f"{kind}-{name}"
    inner = f"{response}-{number}" if kind == "cmpl" else response
    assert response_id(f"{inner}-{random:08x}") == response
