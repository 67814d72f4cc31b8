"""One part of a read: a connection, a request, and the bytes straight into the target blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from kvferry.errors import BackendError
from kvferry_backends import digest
from kvferry_backends.layout import HostPool
from kvferry_backends.tcp.admission import BUSY
from kvferry_backends.tcp.links import Links
from kvferry_backends.tcp.options import split_address
from kvferry_backends.tcp.pace import Calls, Pace
from kvferry_backends.tcp.reading import Read
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.vectors import Vectors
from kvferry_backends.tcp.wire import (
    HEAD_BYTES,
    ReadPart,
    chunks,
    chunks_per_call,
    encode_part,
    head_reason,
)

CONNECT_S = 3.0

_log = logging.getLogger("kvferry.backends.tcp")


class _Awaited(NamedTuple):
    """What a chunk brings besides its blocks."""

    head_end: int
    """Where its head ends among the bytes of the call."""
    head: bytearray
    compared: list[int]
    sums: bytearray


class Fetch:
    """What one thread does for a read.

    ``target_blocks`` is the whole read's list; the part's range selects from it. ``dial`` gives a
    stream that still has to connect to a host.
    """

    def __init__(
        self,
        read: Read,
        part: ReadPart,
        *,
        address: str,
        target_blocks: Sequence[int],
        pool: HostPool,
        links: Links,
        deadline: float,
        dial: Callable[[str], Stream],
        pace: Pace,
    ) -> None:
        self._read = read
        self._part = part
        self._address = address
        self._targets = target_blocks
        self._pool = pool
        self._links = links
        self._deadline = deadline
        self._dial = dial
        self._pace = pace
        self._digest = digest.by_name(part.digest)
        self._verified = 0
        self._answered = False
        """Whether a byte of an answer has come."""

    def run(self) -> None:
        """Bring the part's blocks and tell the read how it went, exactly once. Never raises."""
        try:
            self._fetch()
        except StreamError as error:
            self._read.part_failed(error.error, f"{self._address}: {error}")
        except BackendError as error:
            self._read.part_failed("error", f"{self._address}: {error}")
        except Exception as error:
            _log.exception("transfer %s failed in a way not foreseen", self._part.transfer)
            self._read.part_failed("error", f"{self._address}: {error!r}")
        else:
            blocks = self._part.stop - self._part.start
            self._read.part_done(blocks * self._pool.block_bytes, self._verified)

    def _fetch(self) -> None:
        kept = self._links.take(self._address)
        if kept is not None:
            try:
                self._over(kept)
                return
            except StreamError as error:
                # The source closes connections that idle too long; that one may have gone
                # while our request was under way. Nothing came, so nothing is lost.
                if error.error != "unreachable" or self._answered:
                    raise
        self._over(None)

    def _over(self, kept: Stream | None) -> None:
        """Fetch over a kept connection or a new one."""
        host, port = split_address(self._address)
        stream = kept if kept is not None else self._dial(host)
        whole = False
        try:
            self._read.attach(stream)
            if kept is None:
                limit = min(self._deadline, time.monotonic() + CONNECT_S)
                stream.connect(host, port, limit)
            self._exchange(stream)
            whole = True
        finally:
            self._read.detach(stream)
            if not whole:
                stream.close()
        self._links.give(self._address, stream)

    def _exchange(self, stream: Stream) -> None:
        left_ms = max(1, int((self._deadline - time.monotonic()) * 1000))
        part = msgspec.structs.replace(self._part, deadline_ms=left_ms)
        request = [memoryview(encode_part(part))]
        calls = Calls(chunks_per_call(part, self._pool.block_bytes), self._pace)
        try:
            # It always fits into the socket's buffer.
            calls.timed(partial(stream.send, request, self._deadline))
        except StreamError as error:
            if error.error == "unreachable":
                self._hear_refusal(stream)
            raise
        ranges = list(chunks(part.start, part.stop, part.chunk_blocks))
        calls.run(ranges, partial(self._receive, stream))

    def _receive(self, stream: Stream, ranges: Sequence[tuple[int, int]]) -> None:
        """Receive some chunks in one go."""
        part = self._part
        vectors = Vectors()
        awaited: list[_Awaited] = []
        for start, stop in ranges:
            compared = digest.chosen(part.verify, part.transfer, len(self._targets), start, stop)
            sums = bytearray(digest.DIGEST_BYTES * len(compared))
            chunk = _Awaited(vectors.length + HEAD_BYTES, bytearray(HEAD_BYTES), compared, sums)
            awaited.append(chunk)
            vectors.add(chunk.head)
            vectors.add_blocks(self._pool, self._targets[start:stop])
            if sums:
                vectors.add(sums)
        try:
            stream.receive_vectors(vectors, self._deadline)
        except StreamError as error:
            if error.error == "unreachable":
                for chunk in awaited:
                    if chunk.head_end <= error.moved:
                        self._raise_refused(chunk.head)
            self._answered = self._answered or error.moved > 0
            raise
        self._answered = True
        for chunk in awaited:
            self._raise_refused(chunk.head)
            self._compare(chunk.compared, chunk.sums)

    def _hear_refusal(self, stream: Stream) -> None:
        """A source that turned us away said so before it closed."""
        head = bytearray(HEAD_BYTES)
        try:
            stream.receive([memoryview(head)], self._deadline)
        except StreamError:
            return
        self._raise_refused(head)

    def _raise_refused(self, head: bytearray) -> None:
        reason = head_reason(head)
        if reason:
            self._answered = True
            raise StreamError(BUSY if reason.startswith(BUSY) else "refused", reason)

    def _compare(self, compared: list[int], sums: bytearray) -> None:
        size = digest.DIGEST_BYTES
        for nth, at in enumerate(compared):
            sent = int.from_bytes(sums[nth * size : (nth + 1) * size])
            target = self._targets[at]
            if self._digest(self._pool.block(target)) != sent:
                detail = (
                    f"block {at} of {len(self._targets)} (our block {target}) differs from what "
                    f"the source sent, by {self._part.digest}"
                )
                raise StreamError("digest", detail)
        self._verified += len(compared)
