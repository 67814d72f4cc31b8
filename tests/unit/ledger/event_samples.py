"""One stored sample of every event and version, kept for ever.

``python -m tests.unit.ledger.event_samples`` writes the samples that are missing and never
changes one that exists: what an old kvferry wrote must stay readable.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import NAMES, SCHEMAS, AnyEvent, Event, Inventory, OpenTransfer, Retained
from kvferry.ledger.codec import encode

FOLDER = Path(__file__).parents[2] / "samples" / "events"


def sample_path(name: str, version: int) -> Path:
    return FOLDER / f"{name}.v{version}.msgpack"


def _value(field: msgspec.inspect.Field, number: int) -> object:
    kind = field.type
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType))
    if isinstance(kind, msgspec.inspect.StructType):
        inner = enumerate(kind.fields)
        return kind.cls(**{one.name: _value(one, number + i + 1) for i, one in inner})
    if isinstance(kind, msgspec.inspect.StrType):
        return f"{field.name}-{number}"
    if isinstance(kind, msgspec.inspect.IntType):
        return number
    if isinstance(kind, msgspec.inspect.FloatType):
        return number + 0.5
    if isinstance(kind, msgspec.inspect.BoolType):
        return True
    if isinstance(kind, msgspec.inspect.BytesType):
        return bytes([number]) * 8
    if isinstance(kind, msgspec.inspect.DictType):
        return {field.name: f"value-{number}"}
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return (f"{field.name}-{number}",)
    raise TypeError(f"no sample value for {field.name}: {kind}")


def sample_event(kind: type[Event]) -> Event:
    """An event with every field set to something that is not its default."""
    if kind is Inventory:
        offer = sample_event(Retained)
        transfer = OpenTransfer(transfer="t-1", request="r-1", source="p0", wanted=4, granted=3)
        assert isinstance(offer, Retained)
        return Inventory(part=1, last=True, offers=(offer,), transfers=(transfer,))
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return kind(**{field.name: _value(field, i + 1) for i, field in enumerate(info.fields)})


def sample_batch(kind: type[Event]) -> Batch:
    name = NAMES[kind]
    entry = Entry(
        event=cast(AnyEvent, sample_event(kind)),
        cause=f"cause-of-{name}",
        wall_ms=1_700_000_000_000,
    )
    return Batch(
        space="demo-0123456789ab",
        node="p0",
        incarnation="0123456789abcdef",
        epoch=3,
        lane="facts",
        seq=7,
        entries=(entry,),
    )


def as_json(batch: Batch) -> bytes:
    """What people read beside the sample, and what decoding it must give."""
    return msgspec.json.format(msgspec.json.encode(batch), indent=2) + b"\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (version, kind) in SCHEMAS.items():
        path = sample_path(name, version)
        if not path.exists():
            batch = sample_batch(kind)
            path.write_bytes(encode(batch))
            path.with_suffix(".json").write_bytes(as_json(batch))


if __name__ == "__main__":
    main()
