"""Events of the ledger as slices, flows and instants."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    NAMES,
    AnyEvent,
    Evicted,
    Inventory,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    SendBegan,
    SendEnded,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.story import describe
from kvferry.ports.log import Stored
from kvferry.replay.perfetto.packets import Annotation, Packets
from kvferry.replay.perfetto.tracks import Tracks, flow_id

OPEN_MAX = 200_000
TIERS = {"cache": "offers", "hbm": "leases hbm", "host": "leases host"}


class _Kept(msgspec.Struct):
    """A run that is kept, since when and where."""

    begin_ms: float
    space: str
    node: str
    incarnation: str
    event: Retained


class Drawing:
    """Draws events one after the other; what is kept is drawn when it ends."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._tracks = Tracks(packets)
        self._kept: dict[tuple[str, str, str], _Kept] = {}
        self._listed: dict[tuple[str, str], set[str]] = {}
        """By node: offers of an inventory whose last part is not there yet."""
        self._sends: dict[tuple[str, str, str], str] = {}
        """Where each send that has not ended goes."""
        self._now_ms = 0.0

    def draw(self, stored: Stored, batch: Batch, entry: Entry) -> None:
        """One event. Writers' clocks are used where they are known: batches are stored later."""
        at_ms = float(entry.wall_ms or stored.stored_ms)
        self._now_ms = max(self._now_ms, at_ms)
        match entry.event:
            case RequestEnded() | TurnEnded() as event:
                self._request(batch, event, at_ms)
            case Transferred() as event:
                self._transferred(batch, event, at_ms)
            case PinEnded() as event:
                self._pin(batch, event, at_ms)
            case Retained() as event:
                self._retained(batch, event, at_ms)
            case Evicted() as event if event.offer:
                self._evicted(batch, event, at_ms)
            case Produced():
                return
            case Inventory() as event:
                self._inventory(batch, event, at_ms)
            case Requested() as event:
                self._instant(batch, "plans", _plan(event), entry, at_ms)
            case SendBegan() as event:
                self._began(batch, event)
            case SendEnded() as event:
                self._sent(batch, event, entry, at_ms)
            case TransferFailed() as event:
                self._failed(batch, event, entry, at_ms)
            case LinkProbed() as event:
                self._instant(batch, "links", f"{event.backend} to {event.peer}", entry, at_ms)
            case event:
                self._instant(batch, "life", NAMES[type(event)], entry, at_ms)
                self._life(batch, event, at_ms)

    def finish(self) -> None:
        """What is still kept is drawn up to the end."""
        for kept in list(self._kept.values()):
            self._draw_kept(kept, self._now_ms, "kept at the end")
        self._kept.clear()

    def _request(self, batch: Batch, event: RequestEnded | TurnEnded, at_ms: float) -> None:
        begin_ms = at_ms - (event.total_ms or event.ttft_ms)
        kind = "requests" if isinstance(event, RequestEnded) else "turns"
        track = self._tracks.row(batch.space, batch.node, kind, begin_ms, at_ms)
        self._packets.begin(track, begin_ms, event.request, category=kind, notes=_plain(event))
        self._packets.end(track, at_ms)

    def _transferred(self, batch: Batch, event: Transferred, at_ms: float) -> None:
        begin_ms = at_ms - event.total_ms
        track = self._tracks.row(batch.space, batch.node, "transfers in", begin_ms, at_ms)
        name = f"{event.count} blocks from {event.source}"
        self._packets.begin(
            track, begin_ms, name, category="transfers", notes=_plain(event),
            flow=flow_id(batch.space, event.transfer), last_of_flow=True,
        )  # fmt: skip
        stage_ms = begin_ms
        for stage, took_ms in (
            ("pin", event.pin_ms), ("read", event.read_ms), ("settle", event.settle_ms)
        ):  # fmt: skip
            until_ms = min(at_ms, stage_ms + took_ms)
            if until_ms > stage_ms:
                self._packets.begin(track, stage_ms, stage, category="stages", notes={})
                self._packets.end(track, until_ms)
                stage_ms = until_ms
        self._packets.end(track, at_ms)

    def _began(self, batch: Batch, event: SendBegan) -> None:
        if len(self._sends) >= OPEN_MAX:
            del self._sends[next(iter(self._sends))]
        where = event.slot or event.target or "a decode node"
        self._sends[batch.space, batch.node, event.send] = f"{event.tokens} tokens to {where}"

    def _sent(self, batch: Batch, event: SendEnded, entry: Entry, at_ms: float) -> None:
        """A send from its order to its end; one that was refused before is a fault only."""
        name = self._sends.pop((batch.space, batch.node, event.send), event.send)
        if event.reason:
            self._instant(batch, "faults", f"{event.stage}: {event.reason}", entry, at_ms)
        if not event.total_ms:
            return
        begin_ms = at_ms - event.total_ms
        track = self._tracks.row(batch.space, batch.node, "sends", begin_ms, at_ms)
        self._packets.begin(track, begin_ms, name, category="sends", notes=_plain(event))
        admitted_ms = min(at_ms, begin_ms + event.admitted_ms)
        if admitted_ms > begin_ms:
            self._packets.begin(track, begin_ms, "admission", category="stages", notes={})
            self._packets.end(track, admitted_ms)
        self._packets.end(track, at_ms)

    def _pin(self, batch: Batch, event: PinEnded, at_ms: float) -> None:
        begin_ms = at_ms - event.held_ms
        track = self._tracks.row(batch.space, batch.node, "pins", begin_ms, at_ms)
        name = f"{event.granted} blocks for {event.target}"
        self._packets.begin(
            track, begin_ms, name, category="pins", notes=_plain(event),
            flow=flow_id(batch.space, event.transfer),
        )  # fmt: skip
        self._packets.end(track, at_ms)

    def _retained(self, batch: Batch, event: Retained, at_ms: float) -> None:
        key = (batch.space, batch.node, event.offer)
        known = self._kept.get(key)
        if known is not None:
            if known.event.tier == event.tier:
                known.event = event
                return
            self._draw_kept(known, at_ms, f"moved to {event.tier}")
        elif len(self._kept) >= OPEN_MAX:
            self._draw_kept(self._kept.pop(next(iter(self._kept))), at_ms, "too many to follow")
        self._kept[key] = _Kept(at_ms, batch.space, batch.node, batch.incarnation, event)

    def _evicted(self, batch: Batch, event: Evicted, at_ms: float) -> None:
        if event.keep:
            return
        kept = self._kept.pop((batch.space, batch.node, event.offer), None)
        if kept is not None:
            self._draw_kept(kept, at_ms, event.reason)

    def _life(self, batch: Batch, event: AnyEvent, at_ms: float) -> None:
        """A process that has gone keeps nothing any more."""
        if isinstance(event, NodeClosed):
            self._end(batch.space, batch.node, at_ms, "node_closed")
        elif isinstance(event, NodeLeft):
            self._end(batch.space, event.node, at_ms, "node_left")
        elif isinstance(event, NodeJoined):
            self._end(batch.space, batch.node, at_ms, "node_left", but_of=event.incarnation)

    def _inventory(self, batch: Batch, event: Inventory, at_ms: float) -> None:
        """All that a node keeps; what is not in it has ended unseen."""
        node = (batch.space, batch.node)
        listed = set() if event.part == 0 else self._listed.get(node, set())
        for offer in event.offers:
            listed.add(offer.offer)
            self._retained(batch, offer, at_ms)
        self._listed[node] = listed
        if event.last:
            self._end(*node, at_ms, "not in the inventory", but=self._listed.pop(node))

    def _end(
        self,
        space: str,
        node: str,
        at_ms: float,
        why: str,
        *,
        but: AbstractSet[str] = frozenset(),
        but_of: str = "",
    ) -> None:
        """Draw what a node keeps up to now, but for some offers or those of one process."""
        for key, kept in list(self._kept.items()):
            if key[:2] == (space, node) and key[2] not in but and kept.incarnation != but_of:
                self._draw_kept(self._kept.pop(key), at_ms, why)

    def _draw_kept(self, kept: _Kept, end_ms: float, why: str) -> None:
        kind = TIERS.get(kept.event.tier, kept.event.tier)
        end_ms = max(end_ms, kept.begin_ms)
        track = self._tracks.row(kept.space, kept.node, kind, kept.begin_ms, end_ms)
        name = f"{kept.event.count} blocks"
        notes = _plain(kept.event) | {"ended": why}
        self._packets.begin(track, kept.begin_ms, name, category=kind, notes=notes)
        self._packets.end(track, end_ms)

    def _failed(self, batch: Batch, event: TransferFailed, entry: Entry, at_ms: float) -> None:
        self._instant(batch, "faults", f"{event.stage}: {event.reason}", entry, at_ms)

    def _instant(self, batch: Batch, kind: str, name: str, entry: Entry, at_ms: float) -> None:
        track = self._tracks.of(batch.space, batch.node, kind)
        notes = {"story": describe(batch.node, entry.event)} | _plain(entry.event)
        self._packets.instant(track, at_ms, name, category=kind, notes=notes)


def _plan(event: Requested) -> str:
    return f"pull from {event.source}" if event.transfer else f"miss: {event.miss}"


def _plain(event: msgspec.Struct) -> dict[str, Annotation]:
    """The fields of an event that are text or numbers."""
    fields = ((name, getattr(event, name)) for name in event.__struct_fields__)
    return {name: value for name, value in fields if isinstance(value, str | int | float)}
