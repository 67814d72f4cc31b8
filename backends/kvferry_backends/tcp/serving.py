"""One request of a target, answered from the source's memory."""

from __future__ import annotations

import logging
import time

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize
from kvferry_backends import digest
from kvferry_backends.layout import HostPool
from kvferry_backends.tcp.stream import Stream
from kvferry_backends.tcp.wire import GO, PROTOCOL, ReadPart, chunks, refusal, unpack_blocks

_log = logging.getLogger("kvferry.backends.tcp")


class Refusal(Exception):
    """A request that is answered no. Its text goes to the target, so it is short."""


class Server:
    """What a source may send, to whom, and from where."""

    def __init__(
        self, pool: HostPool, authorize: Authorize, instance: str, timeout_s: float
    ) -> None:
        self.pool = pool
        self._authorize = authorize
        self._instance = instance
        self._timeout_s = timeout_s

    def answer(self, part: ReadPart, stream: Stream) -> None:
        """Send what ``part`` asks for.

        The permission is asked for again before each chunk, so that a pin that ends in
        mid-read ends the sending.

        Raises:
            Refusal: the target was told no, and the connection has to end.
            StreamError: the target is gone or too slow.
        """
        deadline = time.monotonic() + min(part.deadline_ms / 1000, self._timeout_s)
        try:
            blocks = self._checked(part)
            block_digest = digest.by_name(part.digest)
            for start, stop in chunks(part.start, part.stop, part.chunk_blocks):
                if start > part.start:
                    self._permit(part)
                compared = digest.chosen(part.verify, part.transfer, len(blocks), start, stop)
                digests = b"".join(
                    block_digest(self.pool.block(blocks[at])).to_bytes(digest.DIGEST_BYTES)
                    for at in compared
                )
                views = [memoryview(GO), *self.pool.pieces(blocks[start:stop])]
                if digests:
                    views.append(memoryview(digests))
                stream.send(views, deadline)
        except Refusal as refused:
            stream.send([memoryview(refusal(str(refused)))], deadline)
            stream.finish()
            raise

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
