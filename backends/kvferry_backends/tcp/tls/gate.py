"""The gate: the process in which TLS ends. Started by :mod:`kvferry_backends.tcp.tls.door`.

It ends when the engine closes the control socket, by itself or by its death.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from kvferry.errors import ConfigError
from kvferry_backends.tcp.tls.contexts import (
    client_context,
    server_context,
    why_not_accepted,
    why_not_connected,
)
from kvferry_backends.tcp.tls.control import (
    Accepted,
    Dial,
    Failed,
    Listening,
    TurnedAway,
    encode_status,
    receive_from_engine,
    send,
)
from kvferry_backends.tcp.tls.files import TlsFiles
from kvferry_backends.tcp.tls.pump import pump

HANDSHAKE_S = 5.0
ACCEPT_RETRY_S = 0.2
WELCOME = b"\x01"
"""From the source once it has accepted the target's certificate, which in TLS 1.3 a target that
has ended its own handshake does not know yet."""


class GateConfig(msgspec.Struct, frozen=True):
    """How the engine starts a gate; as JSON its only argument."""

    control: int
    """Descriptor of the control socket."""
    listen_host: str
    listen_port: int
    connections_max: int
    """Targets at one time; one more is dropped."""
    files: TlsFiles


class Gate:
    """Accepts and dials until the engine is gone."""

    def __init__(self, config: GateConfig, control: socket.socket) -> None:
        """Listen at once.

        Raises:
            OSError: the address cannot be had.
            ConfigError: a certificate cannot be used.
        """
        self._control = control
        self._server = server_context(config.files)
        self._client = client_context(config.files)
        self._places = threading.Semaphore(config.connections_max)
        family = socket.AF_INET6 if ":" in config.listen_host else socket.AF_INET
        address = (config.listen_host, config.listen_port)
        self._listening = socket.create_server(address, family=family, backlog=128)
        self.port: int = self._listening.getsockname()[1]

    def run(self) -> None:
        """Serve until the control socket ends."""
        send(self._control, Listening(self.port), None)
        self._start(self._accept)
        with contextlib.suppress(EOFError, OSError):
            while True:
                order, plain = receive_from_engine(self._control)
                self._start(self._dial, order, plain)

    def _accept(self) -> None:
        while True:
            try:
                accepted, address = self._listening.accept()
            except OSError:
                time.sleep(ACCEPT_RETRY_S)  # no descriptor is free
                continue
            if self._places.acquire(blocking=False):
                self._start(self._admit, accepted, f"{address[0]}:{address[1]}")
            else:
                accepted.close()

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError):  # the engine is gone, and so are we
                secret = self._welcomed(accepted, peer)
                if secret is not None:
                    self._hand_over(secret, peer)
        finally:
            self._places.release()

    def _welcomed(self, accepted: socket.socket, peer: str) -> ssl.SSLSocket | None:
        accepted.settimeout(HANDSHAKE_S)
        try:
            secret = self._server.wrap_socket(accepted, server_side=True)
        except OSError as error:
            accepted.close()
            send(self._control, TurnedAway(peer, why_not_accepted(error)), None)
            return None
        try:
            secret.sendall(WELCOME)
        except OSError as error:
            secret.close()
            send(self._control, TurnedAway(peer, why_not_accepted(error)), None)
            return None
        return secret

    def _hand_over(self, secret: ssl.SSLSocket, peer: str) -> None:
        ours, engines = socket.socketpair()
        with secret, ours:
            with engines:
                send(self._control, Accepted(peer), engines)
            pump(ours, secret)

    def _dial(self, order: Dial, plain: socket.socket) -> None:
        with plain:
            try:
                secret = self._connected(order)
            except OSError as error:
                word = "error" if isinstance(error, ssl.SSLError) else "unreachable"
                with contextlib.suppress(OSError):  # the engine gave up
                    plain.sendall(encode_status(word, why_not_connected(error)))
                return
            with secret, contextlib.suppress(OSError):
                plain.sendall(encode_status())
                pump(plain, secret)

    def _connected(self, order: Dial) -> ssl.SSLSocket:
        timeout_s = order.timeout_ms / 1000
        raw = socket.create_connection((order.host, order.port), timeout=timeout_s)
        try:
            secret = self._client.wrap_socket(raw)
        except BaseException:
            raw.close()
            raise
        try:
            if secret.recv(len(WELCOME)) != WELCOME:
                raise ConnectionError("the source closed the connection after the handshake")
        except BaseException:
            secret.close()
            raise
        return secret

    @staticmethod
    def _start(act: Callable[..., None], *args: object) -> None:
        threading.Thread(target=act, args=args, daemon=True).start()


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=GateConfig)
    control = socket.socket(fileno=config.control)
    # A Ctrl-C at the engine's terminal is the engine's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        gate = Gate(config, control)
    except (OSError, ConfigError) as error:
        send(control, Failed(str(error)), None)
        return
    gate.run()
    # Connections of an engine that is gone end with us, whatever their threads do.
    os._exit(0)


if __name__ == "__main__":
    main()
