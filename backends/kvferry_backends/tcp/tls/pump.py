"""Carries one connection between a TLS socket and the engine's Unix socket."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl

BUFFER_BYTES = 256 * 1024
RECORD_BYTES = 16 * 1024
SOCKET_BUFFER_BYTES = 1024 * 1024
STALL_S = 60.0
"""Longest that one side may take nothing; the engine gives up earlier, by its own deadlines."""
IDLE_S = 600.0
"""Longer than sources keep an idle connection."""


def pump(plain: socket.socket, secret: ssl.SSLSocket) -> None:
    """Carry bytes both ways until one side ends or stalls. Closes neither.

    One thread does both directions, as an SSL connection is not to be used by two. That is
    enough, for the two ends of a transfer take turns.
    """
    for sock in (plain, secret):
        sock.settimeout(STALL_S)
    secret.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    poller = select.poll()
    poller.register(plain, select.POLLIN)
    poller.register(secret, select.POLLIN)
    more = select.poll()
    more.register(secret, select.POLLIN)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with contextlib.suppress(OSError):
        while ready := poller.poll(IDLE_S * 1000):
            for descriptor, _ in ready:
                if descriptor == plain.fileno():
                    ended = _carry(plain.recv_into(buffer), plain, secret, buffer)
                else:
                    ended = _carry(_gather(secret, more, buffer), secret, plain, buffer)
                if ended:
                    return


def _carry(count: int, giver: socket.socket, taker: socket.socket, buffer: memoryview) -> bool:
    """Hand ``count`` bytes on; whether it was the last time."""
    if not count:
        return True
    try:
        taker.sendall(buffer[:count])
    except OSError:
        # Whoever closed with our bytes unread may have said why before.
        count = taker.recv_into(buffer)
        giver.sendall(buffer[:count])
        return True
    return False


def _gather(secret: ssl.SSLSocket, more: select.poll, buffer: memoryview) -> int:
    """Fill ``buffer`` with what is there, a record at a time; 0 at the end of the stream."""
    filled = 0
    while len(buffer) - filled >= RECORD_BYTES:
        count = secret.recv_into(buffer[filled:])
        filled += count
        if not count or not (secret.pending() or more.poll(0)):
            break
    return filled
