"""A hint may come from anybody: what is not a genuine hint of this space is ignored.

Nothing is fetched from the address in such a hint, the request is answered right, and its miss
says why.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.e2e.conftest import BLOCK, KEY, StartEngine, joined, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Requested, Retained, TransferFailed, Transferred
from kvferry.node.peers.hints import Hint, HintBook
from kvferry.node.peers.keys import load_key

OTHER_KEY = bytes(32)
SOON = {"pin_timeout_ms": 8_000}
PROMPT = 640

pytestmark = pytest.mark.engine


class Ear:
    """A listening socket that notices whoever connects."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def heard(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.close()


class Pair:
    """A source that holds prompts, and a target that gets hints of all kinds."""

    def __init__(self, source: EngineProcess, target: EngineProcess) -> None:
        self.source, self.target = source, target
        self.space = str(source.ask("space"))

    def hold(self, name: str, text: list[int]) -> Hint:
        """Let the source answer a prompt; returns what its hint says."""
        raw = self.source.run(f"{name}-s", text, tokens=2).hint
        return HintBook(load_key(KEY), self.space).read(raw, 0)

    def ask(self, name: str, text: list[int], kvferry: Any) -> Answer:
        return self.target.run(f"{name}-t", text, tokens=16, kvferry=kvferry)


@pytest.fixture(scope="module")
def pair(start_engine: StartEngine) -> Pair:
    # One hint leads to somebody who never answers.
    source, target = start_engine("source"), start_engine("target", connector=SOON)
    joined(source, target)
    return Pair(source, target)


def signed(hint: Hint, *, key: bytes | None = None, space: str = "") -> dict[str, Any]:
    """The hint as it stands in a request."""
    book = HintBook(load_key(KEY) if key is None else key, space or hint.space)
    return book.sign(msgspec.structs.replace(hint, space=space or hint.space))


def bogus(kind: str, hint: Hint, ear: Ear) -> Any:
    """A hint that must not be used, with the ear's address in it."""
    there = msgspec.structs.replace(hint, address=ear.address)
    match kind:
        case "another address under the old signature":
            return {**signed(hint), "address": ear.address}
        case "no signature":
            return {**signed(there), "mac": ""}
        case "a signature under another key":
            return signed(there, key=OTHER_KEY)
        case "another space":
            return signed(there, space="tiny-000000000000")
        case "expired":
            past_ms = int(time.time() * 1000) - 1
            return signed(msgspec.structs.replace(there, expires_ms=past_ms))
    raise AssertionError(kind)


BOGUS = [
    ("another address under the old signature", "bad_hint"),
    ("no signature", "bad_hint"),
    ("a signature under another key", "bad_hint"),
    ("another space", "space_mismatch"),
    ("expired", "expired_hint"),
]


@pytest.mark.parametrize(("kind", "miss"), BOGUS)
def test_a_bogus_hint_is_ignored_and_the_miss_says_why(
    pair: Pair, reference: EngineProcess, ear: Ear, kind: str, miss: str
) -> None:
    held = pair.hold(kind, prompt(1, PROMPT))
    # Nobody holds this prompt, though the hint promises its very tail.
    text = prompt(100 + BOGUS.index((kind, miss)), PROMPT)
    answer = pair.ask(kind, text, {"hint": bogus(kind, held, ear)})
    assert answer.tokens == reference.run(kind, text, tokens=16).tokens
    assert (answer.report["pulled"], answer.report["miss"]) == (0, miss)
    assert not ear.heard()


def test_the_ear_hears_whoever_connects(pair: Pair, ear: Ear) -> None:
    """The control: a hint that only a holder of the key can sign is followed, and found empty."""
    text = prompt(200, PROMPT)
    held = pair.hold("control", prompt(201, PROMPT))
    there = msgspec.structs.replace(held, address=ear.address)
    answer = pair.ask("control", text, {"hint": signed(there)})
    assert ear.heard()
    assert answer.report["pulled"] == 0
    assert answer.report["miss"] == "peer_unreachable"


def test_a_bogus_hint_does_not_keep_the_plan_from_helping(
    pair: Pair, reference: EngineProcess, ear: Ear, plane: Plane
) -> None:
    text = prompt(210, PROMPT)
    held = pair.hold("plan", text)
    plane.wait_for(lambda seen: of(seen, Retained, offer=held.offer), "the offer")
    plane.wait_projected()
    raw = bogus("another address under the old signature", held, ear)
    answer = pair.ask("plan", text, {"hint": raw})
    assert (answer.report["pulled"], answer.report["from"]) == (PROMPT, "source")
    assert answer.tokens == reference.run("plan", text, tokens=16).tokens
    assert not ear.heard()


def test_a_hint_of_an_earlier_life_is_refused_by_the_source(
    pair: Pair, reference: EngineProcess, plane: Plane
) -> None:
    """As if replayed after a restart under the same address; the blocks may be anything now."""
    text = prompt(220, PROMPT)
    held = pair.hold("life", text)
    stale = msgspec.structs.replace(held, incarnation="0" * 16)
    answer = pair.ask("life", text, {"hint": signed(stale)})
    assert answer.tokens == reference.run("life", text, tokens=16).tokens
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "node_left")
    seen = plane.wait_for(
        lambda seen: [e for e in of(seen, TransferFailed) if e.request.startswith("life-t")],
        "the refused transfer",
    )
    assert not [e for e in of(seen, Transferred) if e.request.startswith("life-t")]


def test_a_hint_replayed_with_another_prompt_finds_nothing(
    pair: Pair, reference: EngineProcess, plane: Plane
) -> None:
    held = pair.hold("other", prompt(230, PROMPT))
    text = prompt(231, PROMPT)
    answer = pair.ask("other", text, {"hint": signed(held)})
    assert answer.tokens == reference.run("other", text, tokens=16).tokens
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "not_offered")


def test_a_hint_replayed_with_a_prompt_that_diverges_brings_the_common_part_only(
    pair: Pair, reference: EngineProcess
) -> None:
    text = prompt(240, PROMPT)
    held = pair.hold("common", text)
    edited = text[:200] + prompt(241, PROMPT - 200)
    answer = pair.ask("common", edited, {"hint": signed(held)})
    assert answer.report["pulled"] == 200 // BLOCK * BLOCK
    assert answer.tokens == reference.run("common", edited, tokens=16).tokens


GARBAGE: list[Any] = [
    0,
    -1.5,
    True,
    "x" * 10_000,
    [],
    [[[[]]]],
    {},
    {"hint": None},
    {"hint": "kvferry"},
    {"hint": []},
    {"hint": {}},
    {"hint": {"v": 1}},
    {"hint": {"v": "1", "node": [], "space": {}, "blocks": 1e300, "mac": 0}},
    {"hint": {"node": {"node": {"node": "deep"}}}},
    {"id": 7, "session": ["s"], "handover": "yes", "reuse": {}},
]


def test_garbage_of_any_shape_is_ignored(
    pair: Pair, reference: EngineProcess, plane: Plane
) -> None:
    texts = [prompt(300 + number, 160) for number in range(len(GARBAGE))]
    for number, (text, raw) in enumerate(zip(texts, GARBAGE, strict=True)):
        pair.target.add(f"garbage-{number}", text, tokens=8, kvferry=raw)
        reference.add(f"garbage-{number}", text, tokens=8)
    for number in range(len(GARBAGE)):
        answer = pair.target.answer(f"garbage-{number}")
        assert answer.tokens == reference.answer(f"garbage-{number}").tokens
        assert answer.report["pulled"] == 0
        assert answer.report["miss"] in {"bad_hint", "nothing_held"}
    named = plane.wait_for(
        lambda seen: (
            len([e for e in of(seen, Requested) if e.request.startswith("garbage-")])
            == len(GARBAGE)
        ),
        "every request's miss",
    )
    bad = [e for e in of(named, Requested, miss="bad_hint") if e.request.startswith("garbage-")]
    assert len(bad) == sum(isinstance(raw, dict) and raw.get("hint") is not None for raw in GARBAGE)


def test_a_damaged_field_is_a_bad_hint_whatever_the_field(
    pair: Pair, reference: EngineProcess, ear: Ear
) -> None:
    held = pair.hold("field", prompt(400, PROMPT))
    whole = signed(msgspec.structs.replace(held, address=ear.address))
    for number, (name, value) in enumerate(whole.items()):
        changed: Any = value + 1 if isinstance(value, int) else f"{value}0"
        raw = {**whole, name: changed}
        text = prompt(410 + number, 160)
        answer = pair.ask(f"field-{name}", text, {"hint": raw})
        assert (answer.report["pulled"], answer.report["miss"]) == (0, "bad_hint"), name
        assert answer.tokens == reference.run(f"field-{name}", text, tokens=16).tokens
    assert not ear.heard()


def test_nothing_is_left_open(pair: Pair) -> None:
    for engine in (pair.source, pair.target):
        assert engine.ask("open") == 0
        assert engine.ask("requests") == 0
        assert engine.ask("reserved") == 0
