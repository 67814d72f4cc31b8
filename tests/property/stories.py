"""Histories of a space: what honest nodes, a lossy log and rival leaders write."""

from __future__ import annotations

import random

import msgspec

from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    COORD,
    FACTS,
    AnyEvent,
    Evicted,
    Inventory,
    LeaderElected,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    OpenTransfer,
    PinEnded,
    PolicySet,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.core.state import State

SPACE = "m-0123456789ab"
NODES = ("p0", "p1", "d0")
REPLICAS = ("c-1", "c-2")


class Node:
    """A process with its own idea of what it holds; writes truthfully."""

    def __init__(self, name: str, life: int, rng: random.Random) -> None:
        self.name = name
        self.incarnation = f"{name}.{life}"
        self.epoch = 0
        self.seq = 1
        self.rng = rng
        self.made = 0
        self.offers: dict[str, Retained] = {}
        self.open: dict[str, Requested] = {}

    def batch(self, *events: AnyEvent) -> Batch:
        batch = Batch(
            space=SPACE,
            node=self.name,
            incarnation=self.incarnation,
            epoch=self.epoch,
            lane=FACTS,
            seq=self.seq,
            entries=tuple(Entry(event=event) for event in events),
        )
        self.seq += len(events)
        return batch

    def join(self) -> Batch:
        """The next epoch: node_joined and, from the second on, an inventory in the same batch."""
        self.epoch += 1
        self.seq = 1
        events: list[AnyEvent] = [
            NodeJoined(incarnation=self.incarnation, epoch=self.epoch, address="a:1", block_size=16)
        ]
        if self.epoch > 1:
            moves = tuple(
                OpenTransfer(transfer=t, request=r.request, source=r.source, granted=r.granted)
                for t, r in self.open.items()
            )
            events.append(
                Inventory(part=0, last=True, offers=tuple(self.offers.values()), transfers=moves)
            )
        return self.batch(*events)

    def act(self) -> AnyEvent:
        """One more thing that the node does."""
        act = self.rng.choice(
            (self.offer, self.offer, self.evict, self.request, self.request, self.settle, self.pin)
        )
        return act()

    def offer(self) -> AnyEvent:
        name = f"{self.incarnation}.{self.rng.randint(1, 6)}"
        known = self.offers.get(name)
        self.made += 1
        count = self.rng.randint(1, 40)
        event = Retained(
            offer=name,
            rev=known.rev + 1 if known is not None else self.made,
            tier=self.rng.choice(("cache", "hbm")),
            count=count,
            tail=b"t",
            hashes=b"\0" * (8 * (count // 8)),
        )
        self.offers[name] = event
        return event

    def evict(self) -> AnyEvent:
        if not self.offers:
            return self.offer()
        name = self.rng.choice(sorted(self.offers))
        known = self.offers[name]
        keep = self.rng.randint(0, known.count)
        self.made = max(self.made, known.rev) + 1
        if keep == 0:
            del self.offers[name]
        else:
            listed = known.hashes[: 8 * (keep // 8)]
            self.offers[name] = msgspec.structs.replace(
                known, rev=known.rev + 1, count=keep, tail=b"", hashes=listed
            )
        return Evicted(
            offer=name, rev=known.rev + 1, keep=keep, reason="reuse", count=known.count - keep
        )

    def request(self) -> AnyEvent:
        self.made += 1
        if self.rng.random() < 0.3:
            return Requested(request=f"r{self.made}", miss="nothing_held")
        source = self.rng.choice([name for name in NODES if name != self.name])
        event = Requested(
            request=f"r{self.made}",
            transfer=f"{self.incarnation}.t{self.made}",
            source=source,
            wanted=10,
            granted=10,
        )
        self.open[event.transfer] = event
        return event

    def settle(self) -> AnyEvent:
        if not self.open:
            return self.ended()
        transfer = self.rng.choice(sorted(self.open))
        known = self.open.pop(transfer)
        if self.rng.random() < 0.3:
            return TransferFailed(
                transfer=transfer,
                request=known.request,
                source=known.source,
                stage="settle",
                reason="void",
            )
        return Transferred(
            transfer=transfer,
            request=known.request,
            source=known.source,
            start=0,
            count=10,
            tokens=160,
            bytes=self.rng.randint(1_000, 100_000),
            backend="tcp",
            read_ms=self.rng.uniform(0.1, 9.0),
        )

    def ended(self) -> AnyEvent:
        tokens = self.rng.randint(1, 500)
        return RequestEnded(
            request="r", prompt_tokens=tokens, computed_tokens=tokens, ttft_ms=tokens * 0.7
        )

    def pin(self) -> AnyEvent:
        number = self.rng.randint(1, 30)
        target = self.rng.choice([name for name in NODES if name != self.name])
        return PinEnded(transfer=f"{target}.1.t{number}", target=target, granted=10, how="intact")


def decision(replica: str, term: int, *events: AnyEvent) -> Batch:
    return Batch(
        space=SPACE,
        node=replica,
        incarnation="c",
        epoch=term,
        lane=COORD,
        seq=1,
        entries=tuple(Entry(event=event) for event in events),
    )


def history(rng: random.Random, length: int) -> list[Batch]:
    """Batches in the order in which they were handed to the log, nothing lost."""
    lives = dict.fromkeys(NODES, 0)
    nodes: dict[str, Node] = {}
    out: list[Batch] = []
    term, version = 0, 0
    while len(out) < length:
        name = rng.choice(NODES)
        node = nodes.get(name)
        roll = rng.random()
        if node is None or roll < 0.03:
            lives[name] += 1
            nodes[name] = node = Node(name, lives[name], rng)
            out.append(node.join())
        elif roll < 0.06:
            out.append(node.join())
        elif roll < 0.08:
            out.append(node.batch(NodeClosed(incarnation=node.incarnation)))
            del nodes[name]
        elif roll < 0.12:
            term += 1
            replica = rng.choice(REPLICAS)
            out.append(decision(replica, term, LeaderElected(term=term, replica=replica)))
        elif roll < 0.18:
            # Half of these come from a replica that may have been deposed.
            under = rng.randint(max(0, term - 1), term)
            version += 1
            events: tuple[AnyEvent, ...] = (
                NodeLeft(term=under, node=name, incarnation=node.incarnation, epoch=node.epoch),
                PolicySet(term=under, version=version, mode=rng.choice(("on", "paused"))),
            )
            out.append(decision(rng.choice(REPLICAS), under, rng.choice(events)))
        else:
            out.append(node.batch(*(node.act() for _ in range(rng.randint(1, 4)))))
    return out


def stored(rng: random.Random, batches: list[Batch], *, lossy: bool) -> list[Batch]:
    """As a log with go-back-N producers may hold them: swapped within a window, doubled, lost."""
    out = list(batches)
    for _ in range(len(out) // 4):
        at = rng.randrange(len(out))
        to = min(len(out) - 1, at + rng.randint(0, 12))
        out.insert(to, out.pop(at))
    for _ in range(len(out) // 8):
        at = rng.randrange(len(out))
        out.insert(min(len(out), at + rng.randint(0, 20)), out[at])
    if lossy:
        out = [batch for batch in out if rng.random() > 0.05]
    return out


def fold(state: State, batches: list[Batch], begin: int = 1) -> State:
    for seq, batch in enumerate(batches, begin):
        apply_batch(state, batch, Position(seq, seq * 10))
    return state
