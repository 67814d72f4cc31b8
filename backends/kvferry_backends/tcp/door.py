"""Where connections of targets come from."""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from kvferry.errors import BackendUnavailable


class DoorClosed(Exception):
    """Nobody comes through this door any more."""


class Door(Protocol):
    """Something that targets connect to."""

    port: int

    def accept(self) -> tuple[socket.socket, str]:
        """Wait for the next target: its socket, and its ``ip:port``.

        Raises:
            OSError: that one failed; others may come.
            DoorClosed: no other will come.
        """
        ...

    def wake(self) -> None:
        """Make a waiting :meth:`accept` return or raise. May be called twice."""
        ...

    def close(self) -> None:
        """Give everything back. After :meth:`wake`; may be called twice."""
        ...


class SocketDoor:
    """A listening TCP socket."""

    def __init__(self, backend: str, host: str, port: int) -> None:
        """Listen at once.

        Raises:
            BackendUnavailable: the address cannot be had.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise cannot_listen(backend, host, port, str(error)) from error
        self.port: int = self._socket.getsockname()[1]

    def accept(self) -> tuple[socket.socket, str]:
        accepted, address = self._socket.accept()
        return accepted, f"{address[0]}:{address[1]}"

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._socket.shutdown(socket.SHUT_RDWR)  # close alone would not wake accept

    def close(self) -> None:
        self._socket.close()


def cannot_listen(backend: str, host: str, port: int, why: str) -> BackendUnavailable:
    """The error of a door that could not be opened."""
    return BackendUnavailable(
        f"{backend} backend cannot listen on {host}:{port} ({why}); "
        "set listen_host and listen_port to an address that is free"
    )
