"""The decode nodes that this process writes to: met once, and again when they have restarted."""

from __future__ import annotations

import base64
import binascii
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.remote_writer import Area, RemoteTarget, RemoteWriter
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Target, first_pieces
from kvferry_connectors.tilert.wire import Hello

IDLE_MAX = 64
"""Nodes whose connections are kept although nothing is sent to them."""

log = logging.getLogger("kvferry.tilert")


class Met:
    """A node that was met."""

    def __init__(self, described: str, remote: RemoteTarget) -> None:
        self.described = described
        self.remote = remote
        self.users = 0


class Targets:
    """All of them, by control address. Thread-safe."""

    def __init__(self, make: Callable[[], RemoteWriter], area: Callable[[], Area]) -> None:
        """``make`` is called at the first send; ``area`` tells our staging memory."""
        self._make = make
        self._area = area
        self._lock = threading.Lock()
        self._writer: RemoteWriter | None = None
        self._met: OrderedDict[str, Met] = OrderedDict()
        self._closed = False

    def use(self, where: str, hello: Hello, target: Target) -> Met:
        """The node at ``where``, to be given back.

        Raises:
            SendRefused: ``writer_unavailable``, ``bad_frame`` or ``write_failed``.
        """
        # One at a time: meeting a node takes milliseconds, and two agents for one are too many.
        with self._lock:
            if self._closed:
                raise SendRefused("closed")
            met = self._met.get(where)
            if met is not None and met.described != hello.nixl_meta:
                del self._met[where]
                if not met.users:
                    _let_go(met)
                met = None
            if met is None:
                met = Met(hello.nixl_meta, self._meet(hello, target))
                self._met[where] = met
            met.users += 1
            return met

    def give(self, where: str, met: Met) -> None:
        """A send to this node is over."""
        with self._lock:
            met.users -= 1
            over = []
            if self._met.get(where) is met:
                self._met.move_to_end(where)
                idle = [name for name, one in self._met.items() if not one.users]
                over = [self._met.pop(name) for name in idle[: max(0, len(idle) - IDLE_MAX)]]
            elif not met.users:
                over = [met]  # Another took its place meanwhile.
        for one in over:
            _let_go(one)

    def fence(self, where: str, met: Met) -> None:
        """Make sure that nothing is written any more; the node is met anew by the next send.

        Raises:
            BackendError: that is not sure.
        """
        with self._lock:
            if self._met.get(where) is met:
                del self._met[where]
        met.remote.fence()

    def close(self) -> None:
        """Fence all, and meet no more."""
        with self._lock:
            self._closed = True
            writer, self._writer = self._writer, None
            self._met.clear()
        if writer is not None:
            writer.close()

    def _meet(self, hello: Hello, target: Target) -> RemoteTarget:
        try:
            metadata = base64.b64decode(hello.nixl_meta, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SendRefused("bad_frame", f"hello: nixl_meta is no base64: {error}") from error
        try:
            if self._writer is None:
                self._writer = self._make()
            return self._writer.connect(metadata, self._area(), first_pieces(target))
        except BackendUnavailable as error:
            raise SendRefused("writer_unavailable", str(error)) from error
        except BackendError as error:
            raise SendRefused("write_failed", f"the decode node cannot be met: {error}") from error


def _let_go(met: Met) -> None:
    """End the connection to a node that nothing is sent to."""
    try:
        met.remote.fence()
    except BackendError as error:
        log.error("tilert: a connection to a decode node does not end: %s", error)
