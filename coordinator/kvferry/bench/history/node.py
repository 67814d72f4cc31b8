"""A node of a made history: what it holds, and the facts that it leaves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from kvferry.bench.history.shape import BLOCK_BYTES, SPACE, Message, Shape, Written
from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    BLOCKS,
    FACTS,
    AnyEvent,
    Evicted,
    NodeJoined,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    Transferred,
)
from kvferry.ids import HASH_BYTES, SHORT_BYTES, sample_stride
from kvferry.ledger.codec import encode, split
from kvferry.ledger.subjects import lane_subject

WALL_MS = 1_700_000_000_000


class Talk:
    """One conversation: its chain as sampled short hashes, and how far it goes."""

    def __init__(self, number: int, prefill: Node, decode: Node) -> None:
        self.name = f"s{number}"
        self.prefill, self.decode = prefill, decode
        self.chain = b""
        self.blocks = 0
        self.turns = 0

    @property
    def tail(self) -> bytes:
        """A full hash that stands for the chain as it is now."""
        return self.chain[-SHORT_BYTES:].rjust(HASH_BYTES, b"\1")


class _Held:
    """What one node holds of one conversation."""

    __slots__ = ("blocks", "offer", "rev")

    def __init__(self, offer: str, blocks: int) -> None:
        self.offer = offer
        self.blocks = blocks
        self.rev = 1


class Node:
    """Leaves facts in an outbox of its own until :meth:`look` takes them."""

    def __init__(self, name: str, shape: Shape, written: Written) -> None:
        self.name = name
        self.incarnation = f"{name}-life"
        self.turns = 0
        self._shape = shape
        self._written = written
        self._stride = sample_stride(shape.block_size)
        self._entries: list[Entry] = []
        self._detail: list[Entry] = []
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._used = 0
        self._names = 0
        self._next = {FACTS: 1, BLOCKS: 1}

    def held(self, talk: Talk) -> int:
        """Blocks of the conversation that it holds."""
        held = self._held.get(talk.name)
        return held.blocks if held is not None else 0

    def join(self) -> None:
        """Begin the record."""
        joined = NodeJoined(
            incarnation=self.incarnation,
            epoch=1,
            address="127.0.0.1:1",
            block_size=self._shape.block_size,
            backends=("tcp",),
            blocks=self._shape.pool_blocks,
            block_bytes=BLOCK_BYTES,
        )
        self._leave(joined)

    def miss(self, request: str, wanted: int) -> None:
        """A request for which nothing is held anywhere."""
        self._leave(Requested(request=request, wanted=wanted, miss="nothing_held"), request)

    def pull(
        self, source: Node, request: str, *, wanted: int, granted: int, start: int, basis: str
    ) -> None:
        """Blocks ``start`` to ``granted`` come from ``source``."""
        transfer, count = self._name_next(), granted - start
        requested = Requested(
            request=request,
            transfer=transfer,
            source=source.name,
            source_incarnation=source.incarnation,
            wanted=wanted,
            local_tokens=start * self._shape.block_size,
            granted=granted,
            backend="tcp",
            basis=basis,
            predicted_ms=12.5,
            recompute_ms=310.0,
            options=(source.name,),
        )
        arrived = Transferred(
            transfer=transfer,
            request=request,
            source=source.name,
            start=start,
            count=count,
            tokens=count * self._shape.block_size,
            bytes=count * BLOCK_BYTES,
            backend="tcp",
            pin_ms=0.4,
            read_ms=10.0 + count / 10,
            settle_ms=0.3,
            total_ms=10.8 + count / 10,
        )
        pin = PinEnded(
            transfer=transfer, target=self.name, granted=granted, how="intact", held_ms=12.0
        )
        self._leave(requested, request)
        self._leave(arrived, transfer)
        source._leave(pin, transfer)

    def produce(
        self, talk: Talk, request: str, start: int, end: int, *, step: int, via: str = "computed"
    ) -> None:
        """Blocks ``start`` to ``end`` came to be, ``step`` of them at a time."""
        for first in range(start, end, step):
            last = min(first + step, end)
            listed = slice(first // self._stride * SHORT_BYTES, last // self._stride * SHORT_BYTES)
            run = Produced(
                request=request,
                start=first,
                count=last - first,
                tail=talk.tail,
                parent=talk.tail[:SHORT_BYTES] if first else b"",
                hashes=talk.chain[listed],
                via=via,
            )
            self._detail.append(Entry(run, request, WALL_MS))

    def end(self, request: str, *, prompt: int, local: int, pulled: int, output: int) -> None:
        """A request left the engine; blocks, and ``output`` in tokens."""
        size, computed = self._shape.block_size, prompt - local - pulled
        ended = RequestEnded(
            request=request,
            external_id=f"chatcmpl-{request}",
            session=request.partition(".")[0],
            prompt_tokens=prompt * size,
            local_tokens=local * size,
            pulled_tokens=pulled * size,
            computed_tokens=computed * size,
            output_tokens=output,
            ttft_ms=25.0 + computed / 4,
            outcome="length",
            pull_ms=12.5 if pulled else 0.0,
        )
        self._leave(ended, request)

    def offer(self, talk: Talk, blocks: int, request: str) -> None:
        """Offer the conversation up to there, instead of what was offered of it before."""
        old = self._held.pop(talk.name, None)
        before = old.blocks if old is not None else 0
        self._make_room(blocks - before)
        held = self._held[talk.name] = _Held(self._name_next(), max(blocks, before))
        self._used += held.blocks - before
        self._written.block_events += held.blocks - before
        self._leave(self._retained(held.offer, talk, held.blocks, request, "cache", 0), held.offer)
        if old is not None:
            gone = Evicted(
                offer=old.offer,
                rev=old.rev + 1,
                keep=0,
                reason="superseded",
                count=old.blocks,
                superseded_by=held.offer,
            )
            self._leave(gone, old.offer)

    def lease(self, talk: Talk, blocks: int, request: str) -> str:
        """Lease the conversation up to there; the lease's name."""
        name = self._name_next()
        self._leave(self._retained(name, talk, blocks, request, "hbm", 30_000), name)
        return name

    def end_lease(self, name: str) -> None:
        """The lease's time is over."""
        self._leave(Evicted(offer=name, rev=2, keep=0, reason="expired"), name)

    def look(self) -> Iterator[Message]:
        """What the agent makes of the outbox now."""
        written = self._written
        for message, events in self._batches(FACTS, self._entries):
            written.messages += 1
            written.facts += events
            written.bytes += len(message.data)
            yield message
        for message, events in self._batches(BLOCKS, self._detail):
            written.detail += events
            written.detail_bytes += len(message.data)
            yield message
        self._entries, self._detail = [], []

    # --- inner -------------------------------------------------------------------------------

    def _batches(self, lane: str, entries: list[Entry]) -> Iterator[tuple[Message, int]]:
        """Messages, each with how many events it holds."""
        for group in split(entries):
            batch = Batch(
                space=SPACE,
                node=self.name,
                incarnation=self.incarnation,
                epoch=1,
                lane=lane,
                seq=self._next[lane],
                entries=group,
            )
            self._next[lane] += len(group)
            subject = lane_subject(SPACE, self.name, lane)
            yield Message(subject, encode(batch), batch.message_id), len(group)

    def _leave(self, event: AnyEvent, cause: str = "") -> None:
        self._entries.append(Entry(event, cause, WALL_MS))

    def _name_next(self) -> str:
        self._names += 1
        return f"{self.incarnation}.{self._names}"

    def _make_room(self, blocks: int) -> None:
        """Give up the oldest, first a half of it and then the rest."""
        while self._used + blocks > self._shape.pool_blocks:
            name, held = next(iter(self._held.items()))
            keep = held.blocks // 2 if held.rev == 1 else 0
            lost = held.blocks - keep
            held.rev += 1
            held.blocks = keep
            self._used -= lost
            self._written.block_events += lost
            gone = Evicted(offer=held.offer, rev=held.rev, keep=keep, reason="reuse", count=lost)
            self._leave(gone, held.offer)
            if not keep:
                del self._held[name]

    def _retained(
        self, offer: str, talk: Talk, blocks: int, request: str, tier: str, ttl_ms: int
    ) -> Retained:
        return Retained(
            offer=offer,
            rev=1,
            tier=tier,
            count=blocks,
            tail=talk.tail,
            hashes=talk.chain[: blocks // self._stride * SHORT_BYTES],
            ttl_ms=ttl_ms,
            request=request,
            session=talk.name,
        )
