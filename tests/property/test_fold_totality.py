"""The fold of arbitrary decodable events: it never raises and never breaks an invariant."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.core.apply import apply_batch
from kvferry.core.digest import digest
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    BLOCKS,
    COORD,
    FACTS,
    SCHEMAS,
    AnyEvent,
    NodeJoined,
    OpenTransfer,
    Retained,
)
from kvferry.core.invariants import violations
from kvferry.core.retention_settings import RetentionSettings
from kvferry.core.snapshot import decode, encode
from kvferry.core.state import State
from kvferry.core.story import describe

WORDS = st.sampled_from(["", "a", "b", "p0", "d0", "p0-a", "p0-b", "t1", "t2", "on", "reuse", "\n"])
INTS = st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**64 - 1))
FLOATS = st.one_of(st.floats(0, 100), st.floats())
BLOBS = st.binary(max_size=20)
SETTINGS = {
    "lease_ms": st.none() | INTS,
    "retain_max_ms": st.none() | INTS,
    "lease_budget": st.none() | FLOATS,
    "free_watermark": st.none() | FLOATS,
    "host_budget": st.none() | FLOATS,
}


def built(kind: type) -> st.SearchStrategy[object]:
    """Any value of a struct, each field at random."""
    fields: dict[str, st.SearchStrategy[object]] = {}
    for name, hint in kind.__annotations__.items():
        text = str(hint)
        if "Retained" in text:
            fields[name] = st.lists(built(Retained), max_size=3).map(tuple)
        elif "OpenTransfer" in text:
            fields[name] = st.lists(built(OpenTransfer), max_size=3).map(tuple)
        elif "RetentionSettings" in text:
            fields[name] = st.none() | st.builds(RetentionSettings, **SETTINGS)
        elif text.startswith("tuple"):
            fields[name] = st.lists(WORDS, max_size=2).map(tuple)
        elif text.startswith("dict"):
            fields[name] = st.dictionaries(WORDS, WORDS, max_size=2)
        else:
            kinds = {"str": WORDS, "int": INTS, "float": FLOATS, "bytes": BLOBS}
            fields[name] = kinds.get(text, st.booleans())
    return st.builds(kind, **fields)


EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(*[built(kind) for _, kind in SCHEMAS.values()])  # type: ignore[arg-type]

BATCHES = st.builds(
    Batch,
    space=st.sampled_from(["s", "router"]),
    node=st.sampled_from(["p0", "d0"]),
    incarnation=st.sampled_from(["p0-a", "p0-b"]),
    epoch=st.one_of(st.integers(1, 2), INTS),
    lane=st.sampled_from([FACTS, FACTS, FACTS, COORD, BLOCKS, "other"]),
    seq=st.one_of(st.integers(-1, 6), INTS),
    entries=st.lists(st.builds(Entry, event=EVENTS, cause=WORDS), max_size=4).map(tuple),
)


def honest(node: str, incarnation: str, *events: AnyEvent) -> Batch:
    joined = NodeJoined(incarnation=incarnation, epoch=1, address="", block_size=16)
    return Batch(
        space="s",
        node=node,
        incarnation=incarnation,
        epoch=1,
        lane=FACTS,
        seq=1,
        entries=tuple(Entry(event=event) for event in (joined, *events)),
    )


@given(st.lists(BATCHES, max_size=12))
@settings(max_examples=150)
def test_arbitrary_batches_never_raise(batches: list[Batch]) -> None:
    state = State()
    for seq, batch in enumerate(batches, 1):
        for applied in apply_batch(state, batch, Position(seq, seq)):
            assert "\n" not in describe(applied.node, applied.entry.event)
        assert violations(state) == []
    assert digest(decode(encode(state))) == digest(state)


@given(st.lists(st.tuples(st.booleans(), EVENTS), max_size=30))
@settings(max_examples=150)
def test_arbitrary_events_of_joined_nodes_never_raise(events: list[tuple[bool, AnyEvent]]) -> None:
    """The same with a sound envelope, so that every event reaches its handler."""
    state = State()
    mine = [event for first, event in events if first]
    others = [event for first, event in events if not first]
    apply_batch(state, honest("p0", "p0-a", *mine), Position(1, 1))
    assert violations(state) == []
    apply_batch(state, honest("d0", "d0-a", *others), Position(2, 2))
    assert violations(state) == []
    assert digest(decode(encode(state))) == digest(state)


@given(st.lists(EVENTS, max_size=20))
@settings(max_examples=80)
def test_arbitrary_decisions_never_raise(events: list[AnyEvent]) -> None:
    state = State()
    apply_batch(state, honest("p0", "p0-a"), Position(1, 1))
    batch = Batch(
        space="s",
        node="c",
        incarnation="c",
        epoch=1,
        lane=COORD,
        seq=1,
        entries=tuple(Entry(event=event) for event in events),
    )
    apply_batch(state, batch, Position(2, 2))
    assert violations(state) == []
    assert digest(decode(encode(state))) == digest(state)
