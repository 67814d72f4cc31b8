"""Ports that are still ours when a server, a minute later, comes to listen there."""

from __future__ import annotations

import socket

from kvferry_connectors.demo.settings import HOST


class HeldPort:
    """A free port, bound but not listened to, so that nobody else is given it.

    A server that reuses addresses, as vLLM's and ours do, can listen there all the same, and once
    more after a restart.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give it up."""
        self._socket.close()
