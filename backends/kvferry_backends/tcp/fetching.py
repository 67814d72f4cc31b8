"""One part of a read: a connection, a request, and the bytes straight into the target blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from kvferry.errors import BackendError
from kvferry_backends import digest
from kvferry_backends.layout import HostPool
from kvferry_backends.tcp.links import Links
from kvferry_backends.tcp.options import split_address
from kvferry_backends.tcp.reading import Read
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.wire import HEAD_BYTES, ReadPart, chunks, encode_part, head_reason

CONNECT_S = 3.0

_log = logging.getLogger("kvferry.backends.tcp")


class Fetch:
    """What one thread does for a read.

    ``target_blocks`` is the whole read's list; the part's range selects from it.
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
    ) -> None:
        self._read = read
        self._part = part
        self._address = address
        self._targets = target_blocks
        self._pool = pool
        self._links = links
        self._deadline = deadline
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
        stream = kept if kept is not None else Stream.unconnected(host)
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
        stream.send([memoryview(encode_part(part))], self._deadline)
        for start, stop in chunks(part.start, part.stop, part.chunk_blocks):
            self._receive(stream, start, stop)

    def _receive(self, stream: Stream, start: int, stop: int) -> None:
        part = self._part
        total = len(self._targets)
        compared = digest.chosen(part.verify, part.transfer, total, start, stop)
        head = bytearray(HEAD_BYTES)
        sums = bytearray(digest.DIGEST_BYTES * len(compared))
        views = [memoryview(head), *self._pool.pieces(self._targets[start:stop])]
        if sums:
            views.append(memoryview(sums))
        try:
            stream.receive(views, self._deadline)
        except StreamError as error:
            if error.moved >= HEAD_BYTES and error.error == "unreachable":
                self._raise_refused(head)
            self._answered = self._answered or error.moved > 0
            raise
        self._answered = True
        self._raise_refused(head)
        self._compare(compared, sums)

    def _raise_refused(self, head: bytearray) -> None:
        reason = head_reason(head)
        if reason:
            self._answered = True
            raise StreamError("refused", reason)

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
