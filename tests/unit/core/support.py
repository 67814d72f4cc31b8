"""A ledger in miniature: writers with their lanes, folded as it grows."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    COORD,
    FACTS,
    AnyEvent,
    Event,
    LeaderElected,
    NodeJoined,
    Requested,
    Retained,
)
from kvferry.core.state import NodeState, SpaceState, State
from kvferry.ids import pack_short

SPACE = "m-0123456789ab"
BLOCK_SIZE = 16
STRIDE = 8


def joined(incarnation: str, epoch: int, address: str = "127.0.0.1:7000") -> NodeJoined:
    return NodeJoined(
        incarnation=incarnation,
        epoch=epoch,
        address=address,
        block_size=BLOCK_SIZE,
        backends=("tcp",),
        blocks=1_000,
        block_bytes=4_096,
        role="kv_both",
    )


def retained(offer: str, rev: int = 1, count: int = 20, **more: object) -> Retained:
    samples = pack_short(range(1, count // STRIDE + 1))
    values: dict[str, object] = {"tier": "cache", "tail": b"t" * 32, "hashes": samples, **more}
    return Retained(offer=offer, rev=rev, count=count, **values)  # type: ignore[arg-type]


def requested(transfer: str, source: str = "d0", granted: int = 10) -> Requested:
    return Requested(
        request=f"r-{transfer}",
        transfer=transfer,
        source=source,
        wanted=12,
        granted=granted,
        backend="tcp",
        basis="plan",
    )


class Ledger:
    """One state and the position in its stream."""

    def __init__(self) -> None:
        self.state = State()
        self.seq = 0

    def append(self, batch: Batch) -> list[Applied]:
        self.seq += 1
        return apply_batch(self.state, batch, Position(self.seq, self.seq * 10))

    def decide(self, *events: AnyEvent, replica: str = "c-1", term: int = 1) -> list[Applied]:
        """Append decisions of a replica."""
        entries = tuple(Entry(event=event) for event in events)
        batch = Batch(
            space=SPACE,
            node=replica,
            incarnation="c",
            epoch=term,
            lane=COORD,
            seq=1,
            entries=entries,
        )
        return self.append(batch)

    def lead(self, replica: str = "c-1", term: int = 1) -> list[Applied]:
        return self.decide(LeaderElected(term=term, replica=replica), replica=replica, term=term)

    @property
    def space(self) -> SpaceState:
        return self.state.spaces[SPACE]

    def node(self, name: str) -> NodeState:
        return self.space.nodes[name]


class Writer:
    """A node's facts lane."""

    def __init__(self, ledger: Ledger, name: str, incarnation: str | None = None) -> None:
        self.ledger = ledger
        self.name = name
        self.incarnation = incarnation or f"{name}-a"
        self.epoch = 0
        self.next_seq = 1

    def join(self) -> list[Applied]:
        """Begin the next epoch."""
        self.epoch += 1
        self.next_seq = 1
        return self.write(joined(self.incarnation, self.epoch))

    def batch(self, *events: Event) -> Batch:
        """The next batch of the lane, not appended yet."""
        entries = tuple(Entry(event=event) for event in events)  # type: ignore[arg-type]
        batch = Batch(
            space=SPACE,
            node=self.name,
            incarnation=self.incarnation,
            epoch=self.epoch,
            lane=FACTS,
            seq=self.next_seq,
            entries=entries,
        )
        self.next_seq += len(entries)
        return batch

    def write(self, *events: Event) -> list[Applied]:
        return self.ledger.append(self.batch(*events))


def started(*names: str) -> tuple[Ledger, list[Writer]]:
    """A ledger with a leader of term 1 and these nodes joined."""
    ledger = Ledger()
    ledger.lead()
    writers = [Writer(ledger, name) for name in names]
    for writer in writers:
        writer.join()
    return ledger, writers
