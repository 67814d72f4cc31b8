"""An origin is believed only as it was signed, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.tilert_node.origins import KEY, make

from kvferry.core.story_not_kept import NOT_KEPT
from kvferry_connectors.tilert.origin import OriginRefused, read, signed, unsaid

NOW_MS = 1_000


def test_it_comes_back_as_it_was() -> None:
    origin = make(session="s", last_turn=True)
    assert read({"temperature": 0.0, "kvferry": signed(origin, KEY)}, KEY, NOW_MS) == origin
    assert origin.chain == [b"\x33" * 32]
    assert origin.block_bytes == 2 * (64 * 1152 + 8448)


def refused(sampling: Any, key: bytes = KEY, now_ms: int = NOW_MS) -> str:
    with pytest.raises(OriginRefused) as error:
        read(sampling, key, now_ms)
    assert error.value.reason in NOT_KEPT
    return error.value.reason


@pytest.mark.parametrize("sampling", [None, {}, {"kvferry": 3}, {"kvferry": {"origin": 1}}])
def test_without_one_nothing_is_known(sampling: Any) -> None:
    assert refused(sampling) == "no_origin"


def test_why_prefill_tells_none_is_passed_on() -> None:
    with pytest.raises(OriginRefused, match="with LoRA"):
        read({"kvferry": unsaid("with LoRA")}, KEY, NOW_MS)


def test_another_key_or_another_word_is_refused() -> None:
    said = signed(make(), KEY)
    assert refused({"kvferry": said}, key=b"\x00" * 32) == "bad_key"
    changed = {**said, "origin": said["origin"].replace('"r1"', '"r2"')}
    assert changed != said
    assert refused({"kvferry": changed}) == "bad_key"


def test_an_old_one_is_refused() -> None:
    assert refused({"kvferry": signed(make(), KEY)}, now_ms=2_000) == "stale_origin"


@pytest.mark.parametrize(
    "changes",
    [{"tail": (1, 2)}, {"hashes": b"\x33" * 31}, {"block_tokens": 0}, {"pages": ()}, {"ranks": 0}],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    assert refused({"kvferry": signed(make(**changes), KEY)}) == "bad_origin"
