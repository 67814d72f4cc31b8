"""Batches as bytes: round trips, old versions, and what cannot be read."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.ledger.event_samples import FOLDER, as_json, sample_batch, sample_path

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import SCHEMAS, Event, NodeClosed, Produced
from kvferry.errors import CodecError
from kvferry.ledger.codec import HEAD_BYTES_MAX, MESSAGE_BYTES_MAX, decode, encode, split
from kvferry.ledger.upcast import Upcasters

KINDS = {name: kind for name, (_, kind) in SCHEMAS.items()}


def batch_of(*events: Event) -> Batch:
    return Batch(
        space="s",
        node="p0",
        incarnation="i",
        epoch=1,
        lane="blocks",
        seq=5,
        entries=tuple(Entry(event=event) for event in events),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_event_survives_the_round_trip(name: str) -> None:
    batch = sample_batch(KINDS[name])
    assert decode(encode(batch)) == batch


def test_a_changed_batch_is_not_equal() -> None:
    batch = batch_of(NodeClosed(incarnation="i"))
    other = batch_of(NodeClosed(incarnation="j"))
    assert decode(encode(other)) != batch


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_event_has_a_stored_sample_of_its_version(name: str) -> None:
    assert sample_path(name, SCHEMAS[name][0]).exists(), (
        "run `python -m tests.unit.ledger.event_samples` and commit what it writes"
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.msgpack")), ids=lambda path: path.stem)
def test_stored_samples_decode_to_what_was_recorded(path) -> None:  # type: ignore[no-untyped-def]
    assert as_json(decode(path.read_bytes())) == path.with_suffix(".json").read_bytes()


def test_a_sample_with_one_changed_byte_does_not_pass_for_the_recorded_one() -> None:
    path = sample_path("node_closed", 1)
    data = path.read_bytes().replace(b"incarnation-1", b"incarnation-2")
    assert as_json(decode(data)) != path.with_suffix(".json").read_bytes()


def test_malformed_bytes_say_what_they_are() -> None:
    with pytest.raises(CodecError, match="not a batch: 7 bytes"):
        decode(b"garbage")


def test_truncated_message_names_its_node() -> None:
    data = encode(batch_of(NodeClosed(incarnation="i")))
    values = msgspec.msgpack.decode(data)
    values[6] = "not a sequence"
    with pytest.raises(CodecError, match="node 'p0' in space 's'"):
        decode(msgspec.msgpack.encode(values))


def test_newer_wire_version_is_named() -> None:
    with pytest.raises(CodecError, match="wire version 9 of node 'p0'"):
        decode(msgspec.msgpack.encode([9, "s", "p0", "whatever"]))


def edited(**changes: object) -> bytes:
    values = msgspec.msgpack.decode(encode(batch_of(NodeClosed(incarnation="i"))))
    entry = values[7][0]
    for position, key in enumerate(("name", "version", "cause", "wall_ms", "body")):
        entry[position] = changes.get(key, entry[position])
    return msgspec.msgpack.encode(values)


def test_unknown_event_is_named_with_its_sequence() -> None:
    with pytest.raises(CodecError, match=r"'invented' version 1 at p0:i:1:blocks:5: unknown"):
        decode(edited(name="invented"))


def test_newer_event_version_says_which_is_needed() -> None:
    with pytest.raises(CodecError, match="version 7 of it is needed"):
        decode(edited(version=7))


def test_body_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(CodecError, match="node_closed"):
        decode(edited(body={"incarnation": 5}))


def test_unknown_field_of_a_known_version_is_ignored() -> None:
    decoded = decode(edited(body={"incarnation": "i", "new": [1, 2]}))
    assert decoded.entries[0].event == NodeClosed(incarnation="i")


def test_old_version_is_lifted_step_by_step() -> None:
    steps = Upcasters()

    @steps.register("node_closed", -1)
    def rename(raw: dict[str, object]) -> dict[str, object]:
        return {"life": raw["old"]}

    @steps.register("node_closed", 0)
    def rename_again(raw: dict[str, object]) -> dict[str, object]:
        return {"incarnation": raw["life"]}

    data = edited(version=-1, body={"old": "abc"})
    assert decode(data, steps).entries[0].event == NodeClosed(incarnation="abc")
    with pytest.raises(CodecError, match="no upcaster to version 0"):
        decode(data)
    with pytest.raises(ValueError, match="already"):
        steps.register("node_closed", 0)(rename)


def test_split_keeps_order_and_fits_messages() -> None:
    events = [Produced(request=f"r{i}", start=i, count=1, tail=bytes(32)) for i in range(20_000)]
    entries = batch_of(*events).entries
    groups = split(entries)
    assert len(groups) > 1
    assert tuple(entry for group in groups for entry in group) == entries
    for group in groups:
        batch = msgspec.structs.replace(batch_of(), entries=group)
        assert len(encode(batch)) <= MESSAGE_BYTES_MAX


def test_one_event_larger_than_a_message_stands_alone_and_is_refused() -> None:
    big = Produced(request="r", start=0, count=1, tail=b"", hashes=bytes(MESSAGE_BYTES_MAX))
    small = NodeClosed(incarnation="i")
    groups = split(batch_of(small, big, small).entries)
    assert [len(group) for group in groups] == [1, 1, 1]
    with pytest.raises(CodecError, match="split"):
        encode(batch_of(big))


def test_the_head_fits_what_is_reserved_for_it() -> None:
    head = msgspec.structs.replace(
        batch_of(), space="s" * 128, node="n" * 128, incarnation="i" * 128, seq=2**60
    )
    assert len(encode(head)) < HEAD_BYTES_MAX


def test_split_of_nothing_is_nothing() -> None:
    assert split(()) == []
