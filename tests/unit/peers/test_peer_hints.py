from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.peers.support import KEY, SPACE

from kvferry.node.peers.hints import Hint, HintBook, HintRefused

NOW_MS = 1_700_000_000_000
HINT = Hint(
    node="d0",
    space=SPACE,
    address="127.0.0.1:7000",
    incarnation="aaaaaaaaaaaaaaaa",
    offer="aaaaaaaaaaaaaaaa.7",
    blocks=127,
    tail=bytes(range(32)),
    expires_ms=NOW_MS + 1000,
)


def _refusal(raw: object, book: HintBook | None = None, now_ms: int = NOW_MS) -> str:
    with pytest.raises(HintRefused) as refused:
        (book or HintBook(KEY, SPACE)).read(raw, now_ms)
    return refused.value.reason


def _signed(**changes: object) -> dict[str, object]:
    return HintBook(KEY, SPACE).sign(msgspec.structs.replace(HINT, **changes))


def test_a_hint_survives_json_and_is_read_as_it_was() -> None:
    book = HintBook(KEY, SPACE)
    assert book.read(json.loads(json.dumps(book.sign(HINT))), NOW_MS) == HINT


def test_a_hint_ends_at_its_time() -> None:
    assert HintBook(KEY, SPACE).read(_signed(), NOW_MS + 999) == HINT
    assert _refusal(_signed(), now_ms=NOW_MS + 1000) == "expired_hint"


def test_another_cluster_cannot_sign_for_us() -> None:
    assert _refusal(HintBook(bytes(32), SPACE).sign(HINT)) == "bad_hint"


def test_a_genuine_hint_of_another_space_is_named_as_such() -> None:
    assert _refusal(_signed(space="llama-000000000000")) == "space_mismatch"


def test_a_hint_cannot_be_moved_to_another_space() -> None:
    moved = _signed(space="llama-000000000000") | {"space": SPACE}
    assert _refusal(moved) == "bad_hint"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", "d1"),
        ("address", "10.0.0.1:80"),
        ("incarnation", "b"),
        ("offer", "x"),
        ("blocks", 128),
        ("tail", "00" * 32),
        ("expires_ms", NOW_MS + 10_000_000),
        ("tier", "hbm"),
        ("mac", "00" * 32),
        ("mac", ""),
        ("v", 2),
    ],
)
def test_no_field_can_be_altered(field: str, value: object) -> None:
    assert _refusal(_signed() | {field: value}) == "bad_hint"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blocks", 0),
        ("blocks", -1),
        ("blocks", 1 << 40),
        ("blocks", "127"),
        ("blocks", True),
        ("blocks", 1.0),
        ("tail", "00"),
        ("tail", "xyz"),
        ("tail", None),
        ("expires_ms", -1),
        ("expires_ms", 1 << 70),
        ("node", "n" * 1000),
        ("node", "\ud800"),
        ("mac", "\ud800"),
        ("mac", 5),
        ("extra", 1),
    ],
)
def test_malformed_fields_are_refused(field: str, value: object) -> None:
    assert _refusal(_signed() | {field: value}) == "bad_hint"


@pytest.mark.parametrize("field", sorted(_signed()))
def test_missing_fields_are_refused(field: str) -> None:
    raw = _signed()
    del raw[field]
    assert _refusal(raw) == "bad_hint"


class _Hostile:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("raw", [None, 1, "x", b"x", [], {}, object])
def test_whatever_is_no_hint_is_refused(raw: object) -> None:
    assert _refusal(raw) == "bad_hint"


def test_not_even_a_hostile_object_raises_anything_else() -> None:
    assert _refusal(_Hostile()) == "bad_hint"
    assert _refusal({_Hostile(): 1}) == "bad_hint"
    assert _refusal(_signed() | {"node": _Hostile()}) == "bad_hint"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(raw=_JSON)
def test_garbage_raises_nothing_but_a_refusal(raw: object) -> None:
    assert _refusal(raw) == "bad_hint"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(field=st.sampled_from(sorted(_signed())), value=_JSON)
def test_any_field_replaced_by_anything_is_refused(field: str, value: object) -> None:
    raw = _signed()
    if type(raw[field]) is type(value) and raw[field] == value:
        return
    assert _refusal(raw | {field: value}) in {"bad_hint", "expired_hint"}
