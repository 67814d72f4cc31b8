"""A tcp source, and raw sockets that speak to it as no decent target would."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import msgspec
from tests.contract.pools import Pool

from kvferry.ports.backend import Authorize, Posted, ReadOutcome, ReadRequest, Verify
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.wire import (
    HEAD_BYTES,
    PROTOCOL,
    PeerDescription,
    ReadPart,
    decode_peer,
    encode_part,
    head_reason,
    pack_blocks,
)

WAIT_S = 30.0


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


class Source:
    """A backend that serves ``pool``."""

    def __init__(self, pool: Pool, authorize: Authorize = allow, **options: object) -> None:
        self.pool = pool
        self.backend = TcpBackend(options)
        self.backend.register(pool.regions, authorize)

    @property
    def peer(self) -> PeerDescription:
        return decode_peer(self.backend.describe())

    def connect(self) -> socket.socket:
        host, _, port = self.peer.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=WAIT_S)

    def part(self, **changes: object) -> ReadPart:
        """A good request for the first two blocks, with ``changes``."""
        good = ReadPart(
            protocol=PROTOCOL,
            instance=self.peer.instance,
            transfer="t.raw",
            grant=b"grant",
            blocks=pack_blocks((0, 1)),
            start=0,
            stop=2,
            chunk_blocks=2,
            widths=self.pool.widths,
            verify=Verify.OFF,
            digest="crc32",
            deadline_ms=10_000,
        )
        return msgspec.structs.replace(good, **changes)

    def connections(self) -> int:
        listener = self.backend._listener
        assert listener is not None
        return len(listener._serving)


def ask(source: Source, part: ReadPart) -> tuple[str, bytes]:
    """Send one request; the refusal's reason, and all bytes that came after the first head."""
    with source.connect() as sock:
        sock.sendall(encode_part(part))
        sock.shutdown(socket.SHUT_WR)
        answer = until_closed(sock)
    return head_reason(answer[:HEAD_BYTES]), answer[HEAD_BYTES:]


def until_closed(sock: socket.socket) -> bytes:
    """Everything that the source sends until it closes."""
    answer = b""
    while True:
        try:
            data = sock.recv(1 << 16)
        except ConnectionResetError:
            return answer
        if not data:
            return answer
        answer += data


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.005)


def post(
    target: TcpBackend,
    source: Source,
    transfer: str = "t.1",
    blocks: int = 4,
    verify: Verify = Verify.SAMPLE,
) -> Posted:
    """The first blocks of the source into the same places."""
    return target.post(
        ReadRequest(
            transfer=transfer,
            peer=source.backend.describe(),
            grant=b"",
            source_blocks=range(blocks),
            target_blocks=range(blocks),
            verify=verify,
            deadline_s=WAIT_S,
        )
    )


def read(
    target: TcpBackend,
    source: Source,
    transfer: str = "t.1",
    blocks: int = 4,
    verify: Verify = Verify.SAMPLE,
) -> ReadOutcome:
    """The outcome of :func:`post`."""
    outcome = post(target, source, transfer, blocks, verify).wait(WAIT_S)
    assert outcome is not None
    return outcome
