"""One event of the ledger as `kvferry events` shows it, and which ones it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvferry.cli.jsonable import jsonable
from kvferry.cli.times import clock, iso
from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import NAMES, SCHEMAS, Requested, RequestEnded, TurnEnded
from kvferry.core.story import describe
from kvferry.errors import CodecError
from kvferry.ports.log import Stored
from kvferry.replay.step import read_batch

REMEMBERED_TRANSFERS_MAX = 10_000
EMBEDDED_ID_CHARS_MIN = 8
"""A shorter id must match in full, for it would be found inside foreign ones."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its place, or one message that cannot be decoded (``why`` is set)."""

    stream: str
    stored: Stored
    index: int = 0
    batch: Batch | None = None
    entry: Entry | None = None
    why: str = ""

    @property
    def kind(self) -> str:
        return NAMES[type(self.entry.event)] if self.entry is not None else "undecodable"


def records(stream: str, stored: Stored) -> Iterator[Record]:
    """The events of one stored message, in order."""
    try:
        batch = read_batch(stored)
    except CodecError as error:
        yield Record(stream=stream, stored=stored, why=str(error))
        return
    for index, entry in enumerate(batch.entries):
        yield Record(stream=stream, stored=stored, index=index, batch=batch, entry=entry)


def names_request(asked: str, known: str) -> bool:
    """Whether ``known`` is the id that was asked for, or the engine's dressed-up form of it.

    vLLM turns the client's ``X-Request-Id`` into ``cmpl-<id>-0`` and the like.
    """
    return asked == known or (len(asked) >= EMBEDDED_ID_CHARS_MIN and asked in known)


class Wanted:
    """Which events to show. Stateful: a request's pins are known by its transfers only."""

    def __init__(
        self,
        *,
        spaces: frozenset[str] = frozenset(),
        nodes: frozenset[str] = frozenset(),
        kinds: frozenset[str] = frozenset(),
        request: str = "",
    ) -> None:
        self._spaces = spaces
        self._nodes = nodes
        self._kinds = kinds
        self._request = request
        self._transfers: dict[str, None] = {}

    def __call__(self, record: Record) -> bool:
        if record.batch is None:
            # Never hide a message that cannot be read behind a filter that cannot be judged.
            return True
        assert record.entry is not None
        # The request comes first: its transfers must be learned from events of other kinds too.
        if self._request and not self._about_request(record.entry):
            return False
        return (
            (not self._spaces or record.batch.space in self._spaces)
            and (not self._nodes or self._concerns_node(record))
            and (not self._kinds or record.kind in self._kinds)
        )

    def _concerns_node(self, record: Record) -> bool:
        assert record.batch is not None
        assert record.entry is not None
        event = record.entry.event
        named = {record.batch.node} if record.batch.lane != "coord" else set[str]()
        named |= {str(getattr(event, name, "")) for name in ("node", "source", "target")}
        return bool(named & self._nodes)

    def _about_request(self, entry: Entry) -> bool:
        event = entry.event
        ids = {entry.cause, str(getattr(event, "request", ""))}
        if isinstance(event, Requested | RequestEnded):
            ids.add(event.external_id)
        if isinstance(event, TurnEnded):
            ids |= {event.prefill_request, event.decode_request}
        transfer = str(getattr(event, "transfer", ""))
        if any(names_request(self._request, one) for one in ids if one):
            if transfer:
                self._transfers[transfer] = None
                while len(self._transfers) > REMEMBERED_TRANSFERS_MAX:
                    del self._transfers[next(iter(self._transfers))]
            return True
        return bool(transfer) and transfer in self._transfers


def as_document(record: Record) -> dict[str, Any]:
    """Stable keys for ``--json``."""
    stored = record.stored
    document: dict[str, Any] = {
        "stream": record.stream,
        "seq": stored.seq,
        "index": record.index,
        "time": iso(stored.stored_ms),
        "stored_ms": stored.stored_ms,
        "subject": stored.subject,
    }
    if record.batch is None or record.entry is None:
        return {**document, "event": "undecodable", "error": record.why}
    batch, entry = record.batch, record.entry
    return {
        **document,
        "event": record.kind,
        "version": SCHEMAS[record.kind][0],
        "space": batch.space,
        "node": batch.node,
        "incarnation": batch.incarnation,
        "epoch": batch.epoch,
        "lane": batch.lane,
        "lane_seq": batch.seq + record.index,
        "cause": entry.cause,
        "wall_ms": entry.wall_ms,
        "body": jsonable(entry.event),
    }


def as_line(record: Record) -> str:
    """One line for people."""
    stored = record.stored
    place = f"{stored.seq:>7}  {clock(stored.stored_ms)}"
    if record.batch is None or record.entry is None:
        return f"{place}  cannot be decoded ({stored.subject}): {record.why}"
    return f"{place}  {describe(record.batch.node, record.entry.event)}"
