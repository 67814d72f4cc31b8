"""The source's part of a read: UCX has to be moved on, and chunks packed."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from kvferry.errors import BackendError
from kvferry_backends.control.server import Asked
from kvferry_backends.nixl.agent import Agent
from kvferry_backends.nixl.pool import Pool
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import Ask, Begin, Done, Ready, Taken, decode, encode
from kvferry_backends.packing.chunks import Chunk, chunks
from kvferry_backends.packing.lanes import Lane, Mark
from kvferry_backends.tcp.serving import Refusal
from kvferry_backends.tcp.stream import StreamError

PROGRESS_S = 0.0001
PERMIT_EVERY_S = 0.25


class Source:
    """Serves the conversations of targets, each on a thread of its own."""

    def __init__(self, pool: Pool, agent: Agent) -> None:
        self._pool = pool
        self._agent = agent

    def serve(self, asked: Asked) -> None:
        """Serve one read until its target has what it wants.

        Raises:
            Refusal: it asks for what cannot be, or its grant has ended.
            BackendError: it failed, or the target is gone.
        """
        self._pool.enter()
        ask = decode(asked.body)
        if not isinstance(ask, Ask):
            raise Refusal(f"{type(ask).__name__} is not how to read")
        loan = self._loan(ask)
        if loan is None:
            asked.talk.send(encode(Begin(False)))
            self._direct(asked)
            return
        lane = self._pool.lane()
        try:
            asked.talk.send(encode(Begin(True, loan.base, loan.slot_bytes, loan.slots)))
            _Packing(self._pool, self._agent, asked, ask, loan, lane).run()
        finally:
            lane.drain()
            loan.give_back()

    def _loan(self, ask: Ask) -> RingLoan | None:
        """A ring for what is asked, if it asks for one and one is free."""
        size = ask.chunk_blocks * self._pool.regions.block_bytes
        if not ask.packed or self._pool.rings is None or not 0 < size <= self._pool.chunk_max_bytes:
            return None
        return self._pool.rings.take()

    def _direct(self, asked: Asked) -> None:
        watch = _Watch(asked)
        while not asked.talk.heard(PROGRESS_S):
            self._agent.progress()
            watch.look()
        word = decode(asked.talk.receive())
        if not isinstance(word, Done):
            raise BackendError(f"the target says {type(word).__name__} in a direct read")


class _Watch:
    """Whether a read may go on."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._permit_at_s = time.monotonic() + PERMIT_EVERY_S

    def look(self) -> None:
        """
        Raises:
            Refusal: the grant has ended.
            StreamError: the deadline has passed.
        """
        now_s = time.monotonic()
        if now_s >= self._asked.talk.deadline:
            raise StreamError("deadline", "the target did not end its read in time")
        if now_s >= self._permit_at_s:
            self._asked.permit()
            self._permit_at_s = now_s + PERMIT_EVERY_S


class _Packing:
    """One packed read."""

    def __init__(
        self, pool: Pool, agent: Agent, asked: Asked, ask: Ask, loan: RingLoan, lane: Lane
    ) -> None:
        assert pool.packer is not None
        self._packer = pool.packer
        self._agent = agent
        self._asked = asked
        self._ring = loan
        self._lane = lane
        self._plan: list[Chunk] = list(chunks(len(asked.blocks), ask.chunk_blocks, loan.slots))
        self._listed: Any = lane.run(lambda: self._packer.listed(asked.blocks))
        self._packing: deque[Mark] = deque()
        self._queued = 0
        self._ready = 0
        self._taken = 0

    def run(self) -> None:
        watch = _Watch(self._asked)
        talk = self._asked.talk
        while self._taken < len(self._plan):
            moved = self._pack() or self._tell()
            self._agent.progress()
            watch.look()
            if talk.heard(0.0 if moved else PROGRESS_S):
                word = decode(talk.receive())
                if not isinstance(word, Taken) or not self._taken < word.chunks <= self._ready:
                    raise BackendError(f"the target says {word} after {self._taken} chunks")
                self._taken = word.chunks

    def _pack(self) -> bool:
        """Pack the next chunk, if its slot is free."""
        if self._queued == len(self._plan) or self._queued - self._taken >= self._ring.slots:
            return False
        chunk = self._plan[self._queued]
        slot = self._ring.address(chunk.slot)
        self._lane.run(lambda: self._packer.pack(self._listed, chunk.start, chunk.stop, slot))
        self._packing.append(self._lane.mark())
        self._queued += 1
        return True

    def _tell(self) -> bool:
        """Tell of what has been packed since."""
        ready = self._ready
        while self._packing and self._packing[0]():
            self._packing.popleft()
            ready += 1
        if ready == self._ready:
            return False
        self._ready = ready
        self._asked.talk.send(encode(Ready(ready)))
        return True
