"""The reads of one row: checked, small ones for their latency, large ones for their rate."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence

from kvferry.errors import BackendError
from kvferry.ports.backend import Backend, ReadOutcome, ReadRequest
from kvferry_backends.bench.messages import CONTIGUOUS, Measure
from kvferry_backends.bench.pools import Pool
from kvferry_backends.bench.raw import Raw
from kvferry_backends.tcp.wire import pack_blocks

READ_S = 30.0
"""Longest that one read may take."""
READ_PARTS = 4
"""A large read moves a fourth of the pool's blocks."""
ROUNDS_MIN, ROUNDS_MAX = 3, 1000
SMALL_READS_MIN, SMALL_READS_MAX = 20, 500
SMALL_SHARE = 0.25
"""Of a row's seconds, for the latency of a small read."""

Grant = Callable[[str, bytes], bytes]
"""Called as (transfer, packed source blocks): permission to read these."""


class Reads:
    """Reads from the other end's pool into ours, with one backend.

    Attributes:
        size: bytes of a large read.
    """

    def __init__(self, backend: Backend, pool: Pool, asked: Measure, grant: Grant) -> None:
        self._backend, self._pool, self._asked, self._grant = backend, pool, asked, grant
        self._chance = random.Random(f"{asked.peer_seed}/{asked.pattern}")
        self._name = f"bench.{secrets.token_hex(4)}"
        self._reads = 0
        self._count = pool.regions.blocks // READ_PARTS
        self.size = self._count * pool.regions.block_bytes

    def check(self) -> int:
        """One large read whose bytes are compared; how many blocks were.

        Raises:
            BackendError: it failed, or other bytes came than the source has.
        """
        sources, targets = self._lists(self._count)
        self._pool.poison(targets)
        self._read(sources, targets)
        wrong = self._pool.wrong(targets, self._asked.peer_seed, sources)
        if wrong:
            raise BackendError(
                f"{len(wrong)} of {len(targets)} blocks hold other bytes than the source's, the "
                f"first of them block {wrong[0]}: do not use this backend here"
            )
        return len(targets)

    def small(self) -> list[float]:
        """Seconds of reads of one block each; raises BackendError when one fails."""
        took: list[float] = []
        until = time.monotonic() + SMALL_SHARE * self._asked.seconds
        while len(took) < SMALL_READS_MIN or (
            len(took) < SMALL_READS_MAX and time.monotonic() < until
        ):
            took.append(self._read(*self._lists(1)))
        return took

    def beside(self, limit: Raw) -> tuple[list[float], list[float]]:
        """Seconds of large reads and of plain copies, in turn: what disturbs, disturbs both.

        Raises:
            BackendError: one of either failed.
        """
        reads: list[float] = []
        limits: list[float] = []
        limit.seconds()
        seconds = self._asked.seconds
        while len(reads) < ROUNDS_MIN or (
            len(reads) < ROUNDS_MAX
            and min(sum(reads), sum(limits)) < seconds
            and sum(reads) + sum(limits) < 2 * seconds
        ):
            limits.append(limit.seconds())
            reads.append(self._read(*self._lists(self._count)))
        return reads, limits

    def _read(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Seconds of one read."""
        self._reads += 1
        transfer = f"{self._name}.{self._reads}"
        request = ReadRequest(
            transfer=transfer,
            peer=self._asked.peer,
            grant=self._grant(transfer, pack_blocks(tuple(sources))),
            source_blocks=sources,
            target_blocks=targets,
            verify=self._asked.verify,
            deadline_s=READ_S,
        )
        began = time.perf_counter()
        posted = self._backend.post(request)
        try:
            outcome = posted.wait(READ_S)
            seconds = time.perf_counter() - began
        finally:
            if posted.poll() is None:
                posted.abort()
        if outcome is None:
            outcome = ReadOutcome(error="deadline", detail=f"it took longer than {READ_S:g} s")
        if outcome.error:
            raise BackendError(f"{outcome.error}: {outcome.detail}")
        return seconds

    def _lists(self, count: int) -> tuple[Sequence[int], Sequence[int]]:
        """Source and target blocks of a read.

        Sources lie in the first half of a pool and targets in the second, so that what an end
        gives stays as it was filled, whatever it reads.
        """
        half, chance = self._pool.regions.blocks // 2, self._chance
        if self._asked.pattern == CONTIGUOUS:
            first = chance.randrange(half - count + 1)
            other = half + chance.randrange(half - count + 1)
            return tuple(range(first, first + count)), tuple(range(other, other + count))
        sources = chance.sample(range(half), count)
        return tuple(sources), tuple(chance.sample(range(half, 2 * half), count))
