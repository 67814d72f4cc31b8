"""What is read of a request: our key may hold anything, for it may come from anybody."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.connector.support import BLOCK, chain, tracked

from kvferry_connectors.vllm.tracked import Params, read_params


def test_what_a_router_sends_is_read() -> None:
    hint = {"v": 1}
    texts = {"id": "e", "session": "s", "reuse": "off", "publish": "p", "follow": "f"}
    given = {"hint": hint, "handover": True, **texts}
    assert read_params({"kvferry": given}) == Params(hint=hint, handover=True, **texts)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {},
        [],
        "kvferry",
        7,
        {"kvferry": None},
        {"kvferry": []},
        {"kvferry": "x"},
        {"other": {"hint": 1}},
        {"kvferry": {"unknown": 1}},
        {"kvferry": {1: 2}},
    ],
)
def test_whatever_does_not_fit_is_ignored(raw: Any) -> None:
    assert read_params(raw) == Params()


@pytest.mark.parametrize("value", [None, 1, 2.5, True, [], {}, ["x"], b"bytes"])
def test_each_field_of_another_type_is_ignored(value: Any) -> None:
    names = ("id", "session", "reuse", "publish", "follow")
    assert read_params({"kvferry": dict.fromkeys(names, value)}) == Params()
    assert read_params({"kvferry": {"handover": "true"}}).handover is False


def test_long_texts_are_cut() -> None:
    assert len(read_params({"kvferry": {"session": "s" * 10_000}}).session) == 200


def test_only_whole_prompt_blocks_count() -> None:
    assert tracked("r", chain("a", 3), tokens=3 * BLOCK + 31).prompt_blocks == 3
    assert tracked("r", chain("a", 3), tokens=3 * BLOCK - 1).prompt_blocks == 2
    assert tracked("r", [], tokens=5).prompt_blocks == 0
    # Hashes may be fewer than the prompt's blocks, for example with a drafter.
    assert tracked("r", chain("a", 2), tokens=5 * BLOCK).prompt_blocks == 2


def test_computed_is_what_nobody_else_had() -> None:
    one = tracked("r", chain("a", 3), tokens=100)
    one.local_tokens, one.pulled_tokens = 32, 32
    assert one.computed_tokens == 36
    one.pulled_tokens = 96
    assert one.computed_tokens == 0


def test_what_another_connector_loaded_counts_as_local_once() -> None:
    one = tracked("r", chain("a", 4))
    one.local_tokens, one.pulled_tokens = 32, 32
    one.scheduled(64)
    assert one.local_tokens == 32
    other = tracked("q", chain("a", 4))
    other.scheduled(96)
    assert other.local_tokens == 96
    other.scheduled(120)  # It was preempted and came back.
    assert other.local_tokens == 96
