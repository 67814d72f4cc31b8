"""Stored states: a cache of the fold, never a second truth. What does not match is discarded."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import msgspec

from kvferry.core import snapshot
from kvferry.core.state import State
from kvferry.errors import CodecError
from kvferry.ports.log import FACTS_STREAM, LogPort, ObjectPort, StreamBounds
from kvferry.replay.reading import message_at

log = logging.getLogger("kvferry.replay")

CATALOGUE = "checkpoints"
"""The object that lists the snapshots."""


class SnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of the state at ``position``."""

    position: int
    stored_ms: int
    """When the server stored the message at ``position``; tells a new stream from an old one."""
    digest: str
    fingerprint: str
    object: str
    writer: str = ""
    """The version of kvferry that wrote it."""


class Found(NamedTuple):
    """A stored state that fits its stream."""

    state: State
    stored_ms: int
    """When the server stored the message at the state's position."""


class Catalogue(msgspec.Struct, frozen=True):
    """The snapshots that exist, newest first."""

    entries: tuple[SnapshotEntry, ...] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Catalogue)


async def read_catalogue(objects: ObjectPort) -> Catalogue:
    """What is listed; empty when nothing is, or when the list cannot be read."""
    try:
        data = await objects.get(CATALOGUE)
        return Catalogue() if data is None else _DECODER.decode(data)
    except (CodecError, msgspec.DecodeError) as error:
        log.warning(
            "the list of checkpoints cannot be read (%s); folding from the stream instead, the "
            "next checkpoint replaces it",
            error,
        )
        return Catalogue()


async def write_snapshot(
    objects: ObjectPort, state: State, stored_ms: int, *, keep_max: int, first: int
) -> SnapshotEntry:
    """Store a state and list it; thin out what is listed to ``keep_max``.

    Args:
        objects: where to.
        state: what to store, at ``state.position``.
        stored_ms: the store time of the message at that position.
        keep_max: how many stay listed, at least two.
        first: the first sequence of the stream; older snapshots cannot be continued.
    """
    entry, data = described(state, stored_ms)
    await objects.put(entry.object, data)
    listed = (await read_catalogue(objects)).entries
    others = tuple(one for one in listed if one.position != entry.position)
    ordered = sorted((entry, *others), key=lambda one: -one.position)
    kept = thin(ordered, keep_max=keep_max, first=first)
    await objects.put(CATALOGUE, _ENCODER.encode(Catalogue(tuple(kept))))
    for gone in ordered:
        if gone not in kept:
            await objects.delete(gone.object)
    return entry


def described(state: State, stored_ms: int) -> tuple[SnapshotEntry, bytes]:
    """A snapshot of a state and how a list of snapshots names it.

    Args:
        state: what to keep, at ``state.position``.
        stored_ms: the store time of the message at that position.
    """
    data = snapshot.encode(state)
    entry = SnapshotEntry(
        position=state.position,
        stored_ms=stored_ms,
        digest=msgspec.msgpack.decode(data, type=snapshot.Snapshot).digest,
        fingerprint=snapshot.fingerprint(),
        object=f"snapshot-{state.position}",
        writer=version(),
    )
    return entry, data


def thin(newest_first: list[SnapshotEntry], *, keep_max: int, first: int) -> list[SnapshotEntry]:
    """Which snapshots to keep: the newest, the floor, and the rest spread over the stream.

    The floor is the oldest snapshot that the stream still continues. It is what keeps replays
    possible after the stream's limits discarded its beginning, so it goes last.
    """
    usable = [one for one in newest_first if one.position + 1 >= first]
    stale = [one for one in newest_first if one.position + 1 < first]
    kept = list(usable)
    while len(kept) > max(2, keep_max):
        middle = range(1, len(kept) - 1)
        least = min(middle, key=lambda i: kept[i - 1].position - kept[i + 1].position)
        del kept[least]
    # With a single usable one, the newest stale one still stands in for a lost object.
    return kept if len(kept) >= 2 else kept + stale[: 2 - len(kept)]


async def load_newest(
    log_port: LogPort,
    objects: ObjectPort,
    bounds: StreamBounds,
    accept: Callable[[SnapshotEntry], bool] = lambda entry: True,
) -> Found | None:
    """The newest stored state that matches the stream, or None: then fold from the beginning.

    The stream may begin behind it: the caller then skips what is lost
    (:func:`kvferry.replay.step.skip_lost`).

    Args:
        log_port: the log whose fold the state must be.
        objects: where the snapshots are.
        bounds: of the facts stream.
        accept: which of them to consider, for example those up to a position.
    """
    for entry in (await read_catalogue(objects)).entries:
        if not accept(entry):
            continue
        state = await _load(log_port, objects, bounds, entry)
        if state is not None:
            return Found(state, entry.stored_ms)
    return None


async def _load(
    log_port: LogPort, objects: ObjectPort, bounds: StreamBounds, entry: SnapshotEntry
) -> State | None:
    why = await _stale(log_port, bounds, entry)
    if not why:
        try:
            data = await objects.get(entry.object)
            if data is None:
                why = "its object is gone"
            else:
                state = snapshot.decode(data)
                if state.position == entry.position:
                    return state
                why = f"it is of position {state.position}"
        except CodecError as error:
            why = str(error)
    log.warning("checkpoint at %d is discarded: %s", entry.position, why)
    return None


async def _stale(log_port: LogPort, bounds: StreamBounds, entry: SnapshotEntry) -> str:
    """Why the stream does not continue this snapshot; empty when it does."""
    if entry.fingerprint != snapshot.fingerprint():
        return (
            f"kvferry {entry.writer or 'of an early version'} wrote it with schema "
            f"{entry.fingerprint}, this kvferry {version()} has {snapshot.fingerprint()}"
        )
    if entry.position > bounds.last:
        return f"the stream ends at {bounds.last}"
    if entry.position >= bounds.first:
        found = await message_at(log_port, FACTS_STREAM, entry.position)
        if found is not None and found.stored_ms != entry.stored_ms:
            return "the stream holds another message there"
    return ""


@cache
def version() -> str:
    """Of this kvferry."""
    try:
        return importlib.metadata.version("kvferry")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
