"""Writing into the buffer of a foreign process over NIXL.

An agent for each target, as for each peer that is read (:mod:`kvferry_backends.nixl`), and for the
same reason: NIXL cannot cancel, and only the end of the agent that posted a write is certain. The
fence destroys it; what the target holds of a write that was cut short is undefined, and its owner
must not use it.

The target does not tell whether its buffer is host or device memory, but NIXL knows what its
description registers: a list of descriptors can only be prepared for memory that is.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Sequence

import msgspec
import numpy as np

from kvferry.errors import BackendError
from kvferry.ports.remote_writer import Area, Piece
from kvferry_backends.nixl.agent import Agent, AgentError, Transfer
from kvferry_backends.nixl.library import find
from kvferry_backends.nixl.options import NixlOptions, parse_options
from kvferry_backends.options import convert_options

OTHER = {"host": "cuda", "cuda": "host"}
"""The kind of memory that is tried when the target's is not of the same kind as ours."""


class NixlWriterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the nixl writer."""

    devices: tuple[str, ...] = ()
    """Network devices for UCX, for example ``mlx5_0:1`` or ``lo``; it uses all otherwise."""
    environment: dict[str, str] = {}
    """``UCX_...`` variables that are set while an agent is made, and only then."""


class NixlWriter:
    """Makes targets. Thread-safe."""

    name = "nixl"

    def __init__(self, options: dict[str, object]) -> None:
        """
        Raises:
            ConfigError: an option is unknown, of the wrong type or out of range.
            BackendUnavailable: NIXL is not installed or cannot be used here.
        """
        given = convert_options("nixl", options, NixlWriterOptions)
        self._options: NixlOptions = parse_options(msgspec.to_builtins(given))
        self._library = find()
        self._names = itertools.count(1)
        self._instance = f"kvferry-writer-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._targets: set[NixlTarget] = set()
        self._closed = False

    def connect(self, metadata: bytes, area: Area, probe: Sequence[Piece]) -> NixlTarget:
        """Meet the process that described itself as ``metadata``; see
        :meth:`kvferry.ports.remote_writer.RemoteWriter.connect`.

        Raises:
            BackendError: it cannot be met, or does not offer that memory.
        """
        if self._closed:
            raise BackendError("this nixl writer is closed")
        name = f"{self._instance}.{next(self._names)}"
        agent = Agent(self._library, name, self._options)
        try:
            agent.register([(area.address, area.length)], area.kind, area.device)
            peer = agent.meet(metadata)
            target = NixlTarget(agent, peer, area, _kind(agent, peer, probe, area.kind))
        except BaseException:
            agent.end()
            raise
        with self._lock:
            self._targets = {one for one in self._targets if not one.ended}
            if not self._closed:
                self._targets.add(target)
                return target
        agent.end()
        raise BackendError("this nixl writer is closed")

    def close(self) -> None:
        """Fence every target that is left, and make no more."""
        with self._lock:
            self._closed = True
            left, self._targets = list(self._targets), set()
        for target in left:
            target.fence()


class NixlTarget:
    """One foreign process, written to by an agent of its own."""

    def __init__(self, agent: Agent, peer: str, area: Area, kind: str) -> None:
        self._agent = agent
        self._peer = peer
        self._area = area
        self.kind = kind
        """The target's memory: ``host`` or ``cuda``."""
        self.ended = False

    def write(self, pieces: Sequence[Piece]) -> NixlWriting:
        """Begin to write.

        Raises:
            BackendError: a piece is not within our area, or NIXL failed, perhaps with a part of
                it under way.
        """
        start, end = self._area.address, self._area.address + self._area.length
        for piece in pieces:
            if not start <= piece.local <= end - piece.length:
                raise BackendError(
                    f"{piece.length} bytes at {piece.local:#x} are not within the area that the "
                    "connection was made for"
                )
        local = np.array([(p.local, p.length, self._area.device) for p in pieces], dtype=np.uint64)
        remote = np.array([(p.remote, p.length, p.device) for p in pieces], dtype=np.uint64)
        kinds = (self._area.kind, self.kind)
        return NixlWriting(self._agent, self._agent.write(self._peer, local, remote, kinds))

    def fence(self) -> None:
        """Destroy the agent: after the return nothing of ours touches either memory.

        Raises:
            BackendError: it lives on.
        """
        self._agent.end()
        self.ended = True


class NixlWriting:
    """A write under way."""

    def __init__(self, agent: Agent, transfer: Transfer) -> None:
        self._agent = agent
        self._transfer = transfer

    def done(self) -> bool:
        """Whether every byte is in place.

        Raises:
            BackendError: it failed.
        """
        return self._agent.ended(self._transfer)


def _kind(agent: Agent, peer: str, probe: Sequence[Piece], ours: str) -> str:
    """The kind of the target's memory.

    Raises:
        AgentError: it is registered as neither.
    """
    table = np.array([(p.remote, p.length, p.device, p.length, 1) for p in probe], dtype=np.uint64)
    reasons = []
    for kind in (ours, OTHER[ours]):
        try:
            agent.prepare(peer, table, kind)
        except AgentError as error:
            reasons.append(f"{kind}: {error}")
        else:
            return kind
    raise AgentError(
        "error", f"the target's description does not register its memory ({'; '.join(reasons)})"
    )
