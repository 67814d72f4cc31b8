"""Batches as bytes.

A message is a msgpack array ``[wire version, space, node, incarnation, epoch, lane, seq,
entries]`` and each entry ``[event name, event version, cause, wall_ms, body]``, where the body
is the event as a map without its default values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import NAMES, SCHEMAS, AnyEvent, Event
from kvferry.errors import CodecError
from kvferry.ledger.upcast import UPCASTERS, Upcasters

WIRE_VERSION = 1
MESSAGE_BYTES_MAX = 256 * 1024
"""Of one stored message. A NATS server takes 1 MiB by default."""
HEAD_BYTES_MAX = 1024
"""Reserved for all of a message that is not an entry."""


class _WireEntry(msgspec.Struct, array_like=True):
    name: str
    version: int
    cause: str
    wall_ms: int
    body: msgspec.Raw


class _WireBatch(msgspec.Struct, array_like=True):
    wire: int
    space: str
    node: str
    incarnation: str
    epoch: int
    lane: str
    seq: int
    entries: list[_WireEntry]


class _WireHead(msgspec.Struct, array_like=True):
    """As much of a message as a newer writer must keep readable."""

    wire: int
    space: str = ""
    node: str = ""


_ENCODER = msgspec.msgpack.Encoder()
_HEAD = msgspec.msgpack.Decoder(_WireHead)
_BATCH = msgspec.msgpack.Decoder(_WireBatch)
_RAW = msgspec.msgpack.Decoder(dict[str, Any])
_EVENTS: dict[str, tuple[int, msgspec.msgpack.Decoder[Event]]] = {
    name: (version, msgspec.msgpack.Decoder(kind)) for name, (version, kind) in SCHEMAS.items()
}
_HEADS: dict[type[Event], tuple[str, int]] = {
    kind: (name, SCHEMAS[name][0]) for kind, name in NAMES.items()
}


def _wire_entry(entry: Entry) -> list[object]:
    name, version = _HEADS[type(entry.event)]
    return [name, version, entry.cause, entry.wall_ms, entry.event]


def encode(batch: Batch) -> bytes:
    """The batch as one message of at most :data:`MESSAGE_BYTES_MAX` bytes.

    Raises:
        CodecError: it is larger; use :func:`split` first.
    """
    data = _ENCODER.encode(
        [
            WIRE_VERSION,
            batch.space,
            batch.node,
            batch.incarnation,
            batch.epoch,
            batch.lane,
            batch.seq,
            [_wire_entry(entry) for entry in batch.entries],
        ]
    )
    if len(data) > MESSAGE_BYTES_MAX:
        raise CodecError(
            f"batch {batch.message_id} has {len(data)} bytes, more than the "
            f"{MESSAGE_BYTES_MAX} of one message: split its {len(batch.entries)} entries"
        )
    return data


def split(entries: Sequence[Entry], max_bytes: int = MESSAGE_BYTES_MAX) -> list[tuple[Entry, ...]]:
    """The entries in order, cut into groups that :func:`encode` takes.

    An entry that alone exceeds ``max_bytes`` stands alone; :func:`encode` then refuses it.
    """
    room = max_bytes - HEAD_BYTES_MAX
    groups: list[tuple[Entry, ...]] = []
    group: list[Entry] = []
    size = 0
    for entry in entries:
        entry_bytes = len(_ENCODER.encode(_wire_entry(entry)))
        if group and size + entry_bytes > room:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(entry)
        size += entry_bytes
    if group:
        groups.append(tuple(group))
    return groups


def decode(data: bytes, upcasters: Upcasters = UPCASTERS) -> Batch:
    """A message as the batch it was.

    Raises:
        CodecError: malformed, or written by a newer kvferry; the text says what is known of it.
    """
    try:
        wire = _BATCH.decode(data)
    except msgspec.MsgspecError as error:
        raise CodecError(_what_is_known(data, error)) from error
    if wire.wire != WIRE_VERSION:
        raise CodecError(_what_is_known(data, None))
    where = f"{wire.node}:{wire.incarnation}:{wire.epoch}:{wire.lane}"
    return Batch(
        space=wire.space,
        node=wire.node,
        incarnation=wire.incarnation,
        epoch=wire.epoch,
        lane=wire.lane,
        seq=wire.seq,
        entries=tuple(_entries(wire, where, upcasters)),
    )


def _entries(wire: _WireBatch, where: str, upcasters: Upcasters) -> Iterable[Entry]:
    for offset, item in enumerate(wire.entries):
        try:
            event = _event(item, upcasters)
        except (CodecError, msgspec.MsgspecError) as error:
            what = f"event {item.name!r} version {item.version} at {where}:{wire.seq + offset}"
            raise CodecError(f"{what}: {error}") from error
        yield Entry(event=event, cause=item.cause, wall_ms=item.wall_ms)


def _event(item: _WireEntry, upcasters: Upcasters) -> AnyEvent:
    known = _EVENTS.get(item.name)
    if known is None:
        raise CodecError("unknown event; it needs a newer kvferry")
    version, decoder = known
    if item.version == version:
        return decoder.decode(item.body)  # type: ignore[return-value]
    if item.version > version:
        raise CodecError(
            f"this kvferry reads versions up to {version}; a kvferry with version "
            f"{item.version} of it is needed"
        )
    lifted = upcasters.lift(item.name, item.version, version, _RAW.decode(item.body))
    return decoder.decode(_ENCODER.encode(lifted))  # type: ignore[return-value]


def _what_is_known(data: bytes, error: Exception | None) -> str:
    try:
        head = _HEAD.decode(data)
    except msgspec.MsgspecError:
        return f"not a batch: {len(data)} bytes beginning {data[:16].hex()!r} ({error})"
    if head.wire != WIRE_VERSION:
        return (
            f"wire version {head.wire} of node {head.node!r} in space {head.space!r}: "
            f"this kvferry reads version {WIRE_VERSION}"
        )
    return f"malformed batch of node {head.node!r} in space {head.space!r}: {error}"
