"""A trace for the Perfetto UI, read back with Perfetto's own classes."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.support import SPACE, Writer, converse

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    COORD,
    Evicted,
    Inventory,
    NodeClosed,
    NodeLeft,
    PinEnded,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.errors import ConfigError
from kvferry.ledger.codec import encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.perfetto.write import write_trace

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


class Read:
    """A trace as a viewer understands it."""

    def __init__(self, path: Path) -> None:
        trace = pb.Trace()
        trace.ParseFromString(path.read_bytes())
        self.names: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.slices: list[dict[str, Any]] = []
        self.instants: list[dict[str, Any]] = []
        events = []
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                self.names[track.uuid] = track.name
                if track.HasField("parent_uuid"):
                    self.parents[track.uuid] = track.parent_uuid
            else:
                events.append(packet)
        self._nest(events)

    def _nest(self, events: list[Any]) -> None:
        """Match begins and ends track by track, in order of time."""
        kind = pb.TrackEvent
        by_track: dict[int, list[Any]] = defaultdict(list)
        for packet in events:
            by_track[packet.track_event.track_uuid].append(packet)
        for track, packets in by_track.items():
            open_now: list[dict[str, Any]] = []
            for packet in packets:
                event = packet.track_event
                if event.type == kind.TYPE_INSTANT:
                    self.instants.append(self._told(packet))
                elif event.type == kind.TYPE_SLICE_BEGIN:
                    if open_now:
                        assert packet.timestamp >= open_now[-1]["begin"]
                    open_now.append(self._told(packet))
                else:
                    done = open_now.pop()
                    done["end"] = packet.timestamp
                    assert done["end"] >= done["begin"]
                    if open_now:
                        assert done["begin"] >= open_now[-1]["begin"]
                    self.slices.append(done)
            assert open_now == [], f"{self.names[track]} has slices without an end"

    def _told(self, packet: Any) -> dict[str, Any]:
        event = packet.track_event
        return {
            "name": event.name,
            "begin": packet.timestamp,
            "where": self.where(event.track_uuid),
            "flows": set(event.flow_ids),
            "arrivals": set(event.terminating_flow_ids),
            "notes": {
                note.name: note.string_value or note.int_value or note.double_value
                for note in event.debug_annotations
            },
        }

    def where(self, track: int) -> tuple[str, ...]:
        """The names of the branch, from the space on."""
        name, parent = self.names[track], self.parents.get(track)
        return (name,) if parent is None else (*self.where(parent), name)

    def of(self, *where: str) -> list[dict[str, Any]]:
        return [one for one in self.slices if one["where"] == where]


async def drawn(log: MemoryLog, path: Path) -> Read:
    bounds = await log.bounds(FACTS_STREAM)
    done = await write_trace(log, path, bounds.first, bounds.last)
    assert done.messages == bounds.last
    return Read(path)


async def test_a_conversation_is_drawn(tmp_path: Path) -> None:
    log = MemoryLog()
    await converse(log)
    read = await drawn(log, tmp_path / "t.pftrace")
    (arrival,) = [one for one in read.of(SPACE, "p0", "transfers in") if one["arrivals"]]
    (pin,) = read.of(SPACE, "d0", "pins")
    assert arrival["name"] == "8 blocks from d0"
    assert pin["flows"] == arrival["arrivals"]
    assert len(pin["flows"]) == 1
    assert arrival["end"] - arrival["begin"] == 4_500_000
    stages = [one for one in read.of(SPACE, "p0", "transfers in") if not one["arrivals"]]
    assert [one["name"] for one in stages] == ["read"]
    (offer,) = read.of(SPACE, "d0", "offers")
    assert offer["notes"]["ended"] == "kept at the end"
    requests = read.of(SPACE, "p0", "requests")
    assert {one["notes"]["computed_tokens"] for one in requests} == {44, 100}
    plans = [one["name"] for one in read.instants if one["where"] == (SPACE, "p0", "plans")]
    assert plans == ["pull from d0", "miss: nothing_held"]
    lives = [one for one in read.instants if one["where"][-1] == "life"]
    assert [one["name"] for one in lives] == ["node_joined", "node_joined"]


async def test_what_overlaps_has_rows_of_its_own_and_tiers_are_apart(tmp_path: Path) -> None:
    log = MemoryLog()
    p, d = await converse(log)
    kept = Retained(offer="d.7", rev=1, tier="hbm", count=3, tail=b"t" * 32, hashes=b"", ttl_ms=9)
    await d.write(
        kept,
        Retained(offer="d.7", rev=2, tier="host", count=3, tail=b"t" * 32, hashes=b"", ttl_ms=9),
        Evicted(offer="d.7", rev=3, keep=0, reason="expired"),
        RequestEnded(request="a", total_ms=500.0),
        RequestEnded(request="b", total_ms=100.0),
    )
    await p.write(
        Requested(request="c", transfer="p.5", source="d0", wanted=1, granted=1),
        TransferFailed(transfer="p.5", request="c", source="d0", stage="read", reason="deadline"),
    )
    read = await drawn(log, tmp_path / "t.pftrace")
    assert [one["notes"]["ended"] for one in read.of(SPACE, "d0", "leases hbm")] == [
        "moved to host"
    ]
    assert [one["notes"]["ended"] for one in read.of(SPACE, "d0", "leases host")] == ["expired"]
    rows = [name for name in read.names.values() if name == "requests"]
    assert len(rows) >= 3, "two requests of d0 that overlap, and a row of p0"
    faults = [one for one in read.instants if one["where"] == (SPACE, "p0", "faults")]
    assert [one["name"] for one in faults] == ["read: deadline"]
    assert "story" in faults[0]["notes"]


async def test_what_a_node_kept_ends_with_it(tmp_path: Path) -> None:
    """Given up, started again, closed, and after an inventory that does not list it."""
    log = MemoryLog()
    p, d = await converse(log)
    own = Retained(offer="p.7", rev=1, tier="cache", count=3, tail=b"t" * 32, hashes=b"")
    other = Retained(offer="p.8", rev=1, tier="cache", count=2, tail=b"t" * 32, hashes=b"")
    await p.write(own, other)
    await p.write(
        Inventory(part=0, last=False, offers=(own,)), Inventory(part=1, last=True, offers=())
    )
    later = Writer(log, "p0", incarnation="2" * 16)
    await later.join()
    await later.write(Retained(offer="2.1", rev=1, tier="cache", count=1, tail=b"t" * 32,
                               hashes=b""))  # fmt: skip
    await later.write(NodeClosed(incarnation="2" * 16))
    left = NodeLeft(term=1, node="d0", incarnation=d.incarnation, epoch=1)
    batch = Batch(space=SPACE, node="c1", incarnation="c1", epoch=1, lane=COORD, seq=1,
                  entries=(Entry(event=left),))  # fmt: skip
    await log.append(coord_subject(SPACE), encode(batch), message_id="c1")
    read = await drawn(log, tmp_path / "t.pftrace")
    ended = {
        (one["where"][1], one["name"]): one["notes"]["ended"]
        for node in ("p0", "d0")
        for one in read.of(SPACE, node, "offers")
    }
    assert ended == {
        ("p0", "2 blocks"): "not in the inventory",
        ("p0", "3 blocks"): "node_left",
        ("p0", "1 blocks"): "node_closed",
        ("d0", "8 blocks"): "node_left",
    }


async def test_a_pin_without_an_arrival_has_no_arrow_to_another(tmp_path: Path) -> None:
    log = MemoryLog()
    p, d = await converse(log)
    await d.write(PinEnded(transfer="p.8", target="p0", granted=1, how="abort", held_ms=1.0))
    await p.write(
        Transferred(transfer="p.9", request="r", source="d0", start=0, count=1, tokens=32, bytes=1,
                    backend="tcp", total_ms=1.0)
    )  # fmt: skip
    read = await drawn(log, tmp_path / "t.pftrace")
    departures = set().union(*(one["flows"] for one in read.slices))
    arrivals = set().union(*(one["arrivals"] for one in read.slices))
    assert len(departures) == len(arrivals) == 2
    assert len(departures & arrivals) == 1


async def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(ConfigError, match=r"kvferry\[perfetto\]"):
        await write_trace(MemoryLog(), tmp_path / "t", 1, 0)
    assert os.listdir(tmp_path) == []
