"""One request of a target, answered from the source's memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize
from kvferry_backends import digest
from kvferry_backends.layout import HostPool
from kvferry_backends.tcp.admission import Admission, TooBusy
from kvferry_backends.tcp.pace import Calls
from kvferry_backends.tcp.stream import Stream
from kvferry_backends.tcp.vectors import Vectors
from kvferry_backends.tcp.wire import (
    GO,
    PROTOCOL,
    ReadPart,
    chunks,
    chunks_per_call,
    refusal,
    unpack_blocks,
)

_log = logging.getLogger("kvferry.backends.tcp")


class Refusal(Exception):
    """A request that is answered no. Its text goes to the target, so it is short."""


class Server:
    """What a source may send, to whom, and from where."""

    def __init__(
        self,
        pool: HostPool,
        authorize: Authorize,
        instance: str,
        timeout_s: float,
        admission: Admission,
    ) -> None:
        self.pool = pool
        self._authorize = authorize
        self._instance = instance
        self._timeout_s = timeout_s
        self._admission = admission

    def answer(self, part: ReadPart, stream: Stream) -> None:
        """Send what ``part`` asks for.

        The permission is asked for again before each further call, so that a pin that ends in
        mid-read ends the sending.

        Raises:
            Refusal: the target was told no, and the connection has to end.
            StreamError: the target is gone or too slow.
        """
        deadline = time.monotonic() + min(part.deadline_ms / 1000, self._timeout_s)
        try:
            blocks = self._checked(part)
            with self._admitted(part, len(blocks)):
                self._send(part, blocks, stream, deadline)
        except Refusal as refused:
            stream.send([memoryview(refusal(str(refused)))], deadline)
            stream.finish()
            raise

    @contextmanager
    def _admitted(self, part: ReadPart, blocks: int) -> Iterator[None]:
        try:
            with self._admission.admit(part.transfer, blocks * self.pool.block_bytes):
                yield
        except TooBusy as busy:
            raise Refusal(str(busy)) from None

    def _send(
        self, part: ReadPart, blocks: tuple[int, ...], stream: Stream, deadline: float
    ) -> None:
        def send(some: Sequence[tuple[int, int]]) -> None:
            if some[0][0] > part.start:
                self._permit(part)
            stream.send_vectors(self._chunks(part, blocks, some), deadline)

        calls = Calls(chunks_per_call(part, self.pool.block_bytes))
        calls.run(list(chunks(part.start, part.stop, part.chunk_blocks)), send)

    def _chunks(
        self, part: ReadPart, blocks: tuple[int, ...], ranges: Sequence[tuple[int, int]]
    ) -> Vectors:
        """Some chunks as they go out, their digests taken from the blocks as they are now."""
        block_digest = digest.by_name(part.digest)
        vectors = Vectors()
        for start, stop in ranges:
            compared = digest.chosen(part.verify, part.transfer, len(blocks), start, stop)
            sums = bytearray()
            for at in compared:
                sums += block_digest(self.pool.block(blocks[at])).to_bytes(digest.DIGEST_BYTES)
            vectors.add(bytearray(GO))
            vectors.add_blocks(self.pool, blocks[start:stop])
            if sums:
                vectors.add(sums)
        return vectors

    def _checked(self, part: ReadPart) -> tuple[int, ...]:
        if part.protocol != PROTOCOL:
            raise Refusal(f"protocol {part.protocol}, not {PROTOCOL}")
        if part.instance != self._instance:
            raise Refusal("another process serves this address now")
        self._permit(part)
        if part.widths != self.pool.widths:
            raise Refusal("block layouts differ")
        if part.digest not in digest.names():
            raise Refusal(f"no digest {part.digest[:20]}")
        try:
            blocks = unpack_blocks(part.blocks)
        except BackendError as error:
            raise Refusal("malformed block list") from error
        if not 0 <= part.start < part.stop <= len(blocks) or part.chunk_blocks < 1:
            raise Refusal(f"no range {part.start}:{part.stop} of {len(blocks)} blocks")
        if max(blocks) >= self.pool.blocks:
            raise Refusal(f"block {max(blocks)} of a pool of {self.pool.blocks}")
        return blocks

    def _permit(self, part: ReadPart) -> None:
        try:
            permitted = self._authorize(part.transfer, part.grant, part.blocks)
        except Exception:
            _log.exception("transfer %s: the check of its grant failed; refused", part.transfer)
            permitted = False
        if not permitted:
            raise Refusal("the grant does not permit these blocks now")
