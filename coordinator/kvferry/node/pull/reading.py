"""The reads of one pull: over the best backend, and over the next one when it fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import pairwise

from kvferry.node.peers.wire import Granted
from kvferry.node.pull.choice import PROBE_BLOCKS_MIN, PROBE_MS_MAX, Choice, Chosen, Measured
from kvferry.node.pull.failure import BackendFailed, Failed
from kvferry.node.pull.jobs import PullJob
from kvferry.node.pull.links import Links
from kvferry.node.pull.reads import Control, Piece, Reads
from kvferry.ports.backend import ReadOutcome

log = logging.getLogger("kvferry.puller")

PROBE_READ_S = 2.0
"""A backend that takes longer for one read of a probe has failed it."""


class Reader:
    """Reads what a source granted into the job's target blocks.

    Attributes:
        verified_blocks: blocks compared by digest so far.
        host_blocks: blocks that came from the source's host tier so far.
        news: the choice of the pair, if this pull made it or made it anew.
    """

    def __init__(self, job: PullJob, control: Control, links: Links) -> None:
        self._job = job
        self._control = control
        self._reads = Reads(job, control)
        self._links = links
        self._backends = {backend.name: backend for backend in links.backends}
        self._incarnation = ""
        self._host_first = 0
        """Number of the host tier's first slot while blocks of it are read; 0 for the engine's."""
        self._offered: Mapping[str, bytes] = {}
        self._names: list[str] = []
        self._moved: Counter[str] = Counter()
        self.verified_blocks = 0
        self.host_blocks = 0
        self.news: Chosen | None = None

    @property
    def fence(self) -> str:
        """How a backend was made unable to touch the blocks, if a read had to be ended."""
        return self._reads.fence

    @property
    def bytes(self) -> int:
        """Bytes that are in place."""
        return self._moved.total()

    @property
    def most(self) -> str:
        """The backend that moved most, or the last one that tried; empty before any."""
        ranked = self._moved.most_common(1)
        if ranked:
            return ranked[0][0]
        return self._reads.backend.name if self._reads.backend is not None else ""

    def read(self, granted: Granted, first: int = 0) -> None:
        """Bring the granted blocks into the job's target blocks ``first`` and on.

        Raises:
            Failed: no common backend could; whoever gets it calls :meth:`end`.
        """
        parts = tier_parts(granted)
        for start, stop in parts:
            if len(parts) == 1:
                self._read_part(granted, first)
            else:  # Each data plane needs a grant for exactly what it is to send.
                self._read_part(self._control.grant(first + start, stop - start), first + start)

    def _read_part(self, granted: Granted, first: int) -> None:
        """Blocks of one tier."""
        job = self._job
        host = bool(granted.host_first) and granted.blocks[0] >= granted.host_first
        self._host_first = granted.host_first if host else 0
        described = granted.host_backends if host else granted.backends
        offered = described[job.rank] if job.rank < len(described) else {}
        self._names = [name for name in self._backends if name in offered]
        if not self._names:
            ours = ", ".join(self._backends) or "none"
            theirs = ", ".join(offered) or "none"
            raise Failed("read", "error", f"no common backend: {ours} here, {theirs} there")
        self._offered, self._incarnation = offered, granted.incarnation
        self._reads.renew_every_s = granted.deadline_ms / 3000
        self._links.met(self._incarnation, job.rank, offered, host=host)
        count, now_s = len(granted.blocks), time.monotonic()
        with self._choice() as choice:
            each = choice.probe_blocks(self._names, count, self._links.block_bytes, now_s)
            if not each:
                choice.settle(self._names, now_s)
        try:
            if each:
                done = self._probe(first, count, each)
                self._over_best(self._piece(first + done, count - done))
            else:
                self._over_best(self._as_piece(granted, first))
            self.host_blocks += count if host else 0
        finally:
            self._take_news()

    def end(self) -> None:
        """Fence: after the return no byte of a target block changes any more."""
        self._reads.end()

    def blame(self, detail: str) -> None:
        """The backend in use broke in a way that it should not."""
        if self._reads.backend is not None:
            self._failed(self._reads.backend.name, detail)
            self._take_news()

    # --- inner ------------------------------------------------------------------------------

    def _over_best(self, piece: Piece) -> None:
        """Read over one backend after the other until one succeeds."""
        failure: BackendFailed | None = None
        with self._choice() as choice:
            order = choice.order(self._names, time.monotonic())
        for name in order:
            if failure is not None:
                self._go_on_after(failure)
            try:
                outcome, took_ms = self._read(name, piece, self._control.left_s())
            except BackendFailed as error:
                self._failed(name, error.detail)
                failure = error
                continue
            with self._choice() as choice:
                choice.moved(name, outcome.bytes, took_ms, len(piece.targets))
            self._count(name, outcome)
            return
        assert failure is not None
        raise failure

    def _probe(self, first: int, count: int, each: int) -> int:
        """Measure each usable backend on blocks of its own; returns how many blocks are there.

        The first block is read by each of them: once for what is set up once, once for the floor.
        """
        with self._choice() as choice:
            names = choice.usable(self._names, time.monotonic())
        small = self._piece(first, 1)
        measured: list[Measured] = []
        failure: BackendFailed | None = None
        done = 1
        for name in names:
            if failure is not None:
                self._go_on_after(failure)
            try:
                self._read(name, small, PROBE_READ_S)
                one, floor_ms = self._read(name, small, PROBE_READ_S)
                within = max(PROBE_BLOCKS_MIN, int(PROBE_MS_MAX / max(floor_ms, 1e-3)))
                part = self._piece(first + done, min(each, within))
                outcome, took_ms = self._read(name, part, PROBE_READ_S)
            except BackendFailed as error:
                self._failed(name, error.detail)
                failure = error
                continue
            failure = None
            rate = outcome.bytes / max(took_ms, 1e-3) / 1e6
            if not measured:
                self._count(name, one)
            measured.append(Measured(name, round(rate, 4), round(floor_ms, 4)))
            self._count(name, outcome)
            done += len(part.targets)
        if not measured:
            assert failure is not None
            raise failure
        with self._choice() as choice:
            choice.probed(measured)
        log.info("transfer %s measured %s", self._job.transfer, measured)
        return done

    def _go_on_after(self, failure: BackendFailed) -> None:
        """Another backend is only worth trying while the source answers."""
        if not self._control.renew():
            raise failure
        log.warning(
            "transfer %s: backend %s failed, the next one reads instead: %s",
            self._job.transfer,
            self._reads.backend.name if self._reads.backend is not None else "",
            failure.detail,
        )

    def _read(self, name: str, piece: Piece, limit_s: float) -> tuple[ReadOutcome, float]:
        return self._reads.read(self._backends[name], self._offered[name], piece, limit_s)

    def _piece(self, first: int, count: int) -> Piece:
        return self._as_piece(self._control.grant(first, count), first)

    def _as_piece(self, granted: Granted, first: int) -> Piece:
        targets = self._job.target_blocks[first : first + len(granted.blocks)]
        sources = tuple(block - self._host_first for block in granted.blocks)
        return Piece(granted.grants[self._job.rank], sources, targets)

    def _count(self, name: str, outcome: ReadOutcome) -> None:
        self._moved[name] += outcome.bytes
        self.verified_blocks += outcome.verified_blocks

    def _failed(self, name: str, detail: str) -> None:
        with self._choice() as choice:
            choice.failed(name, detail, self._names, time.monotonic())

    def _take_news(self) -> None:
        with self._choice() as choice:
            self.news = choice.take_news() or self.news

    def _choice(self) -> AbstractContextManager[Choice]:
        host = self._host_first > 0
        return self._links.choice(self._incarnation, self._job.rank, host=host)


def tier_parts(granted: Granted) -> list[tuple[int, int]]:
    """Where the granted blocks of one tier begin and end, part by part."""
    blocks, first = granted.blocks, granted.host_first
    if not first:
        return [(0, len(blocks))]
    edges = [i for i in range(1, len(blocks)) if (blocks[i] < first) != (blocks[i - 1] < first)]
    return list(pairwise((0, *edges, len(blocks))))
