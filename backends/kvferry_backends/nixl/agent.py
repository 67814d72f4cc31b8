"""One NIXL agent: a thin cover that serialises its calls and can really end it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.errors import BackendError, BackendUnavailable
from kvferry_backends.nixl.library import Library
from kvferry_backends.nixl.options import NixlOptions

_MEMORY = {"host": "DRAM", "cuda": "VRAM"}
_log = logging.getLogger("kvferry.backends.nixl")
_environment_lock = threading.Lock()
ENVIRONMENT = {"UCX_CUDA_IPC_CACHE": "n"}
"""What UCX is told where neither the options nor the process's environment say otherwise.

UCX keeps the memory of a peer's GPU mapped after a read. When the peer is killed, the driver frees
that memory only once its reader has unmapped it: on two H200, 80 GiB stayed allocated, and the peer
could not start again. Without that cache it was free within 0.1 s; reads of large blocks become
slower (tests/gpu/results, source-killed and link-nixl-without-ipc-cache)."""


class AgentError(BackendError):
    """NIXL failed.

    Attributes:
        error: the word for it in a ``ReadOutcome``.
    """

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.error = error


class Transfer:
    """A read under way: NIXL's handle, released when it has ended or its agent does."""

    def __init__(self, handle: Any, done: bool) -> None:
        self.handle = handle
        self.done = done


class Agent:
    """Thread-safe; NIXL itself is not, so there is one call at a time.

    Without a thread of NIXL's own: it would burn a core. Whoever waits calls :meth:`ended` or
    :meth:`progress`, which move everything of this agent on.
    """

    def __init__(self, library: Library, name: str, options: NixlOptions) -> None:
        """
        Raises:
            BackendUnavailable: UCX cannot be used here.
        """
        self._library = library
        self._lock = threading.Lock()
        self._lists: list[Any] = []
        self._under_way: set[Transfer] = set()
        try:
            with _environment(_variables(options)):
                config = library.config(enable_prog_thread=False, backends=[])
                self._agent: Any = library.agent(name, config)
                self._binding = weakref.ref(self._agent.agent)
                self._agent.create_backend("UCX", _parameters(options))
        except Exception as error:
            raise BackendUnavailable(
                f"backend nixl: no agent can be made over UCX ({error}); check the options devices "
                f"and environment, and that package {library.package} fits this machine"
            ) from error

    def register(self, areas: Sequence[tuple[int, int]], kind: str, device: int) -> None:
        """Let peers read, and ours write, these (address, length) areas.

        Raises:
            AgentError: the memory cannot be registered.
        """
        listed = [(address, length, device, "") for address, length in areas]
        with self._call("registering memory") as agent:
            agent.register_memory(listed, _MEMORY[kind])

    def metadata(self) -> bytes:
        """How to connect to this agent, and the keys of what it has registered."""
        with self._call("describing itself") as agent:
            return bytes(agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> str:
        """Make a peer known; its name.

        Raises:
            AgentError: it cannot be.
        """
        with self._call("meeting a peer") as agent:
            name = agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def prepare(self, peer: str, table: Any, kind: str) -> Any:
        """A list of descriptors for :meth:`read`; ``peer`` is empty for our own memory.

        ``table`` has a row for each span: address, length, device, stride, count.
        """
        with self._call("preparing descriptors") as agent:
            found = agent.prep_xfer_dlist(peer or "NIXL_INIT_AGENT", table, _MEMORY[kind])
            self._lists.append(found)
            return found

    def read(self, local: Any, local_ids: Any, remote: Any, remote_ids: Any) -> Transfer:
        """Begin to read descriptors (int32 positions) of two prepared lists.

        Raises:
            AgentError: it failed, perhaps with a part of it under way.
        """
        with self._call("a read") as agent:
            handle = agent.make_prepped_xfer("READ", local, local_ids, remote, remote_ids, b"")
            return self._begin(agent, handle)

    def read_piece(
        self,
        peer: str,
        local: tuple[int, int],
        remote: tuple[int, int],
        kind: tuple[str, str],
        length: int,
    ) -> Transfer:
        """Begin to read one piece between (address, device) pairs.

        Raises:
            AgentError: it failed, perhaps with a part of it under way.
        """
        sides = [
            np.array([(address, length, device)], dtype=np.uint64)
            for address, device in (local, remote)
        ]
        with self._call("a read") as agent:
            ours = agent.get_xfer_descs(sides[0], _MEMORY[kind[0]])
            theirs = agent.get_xfer_descs(sides[1], _MEMORY[kind[1]])
            handle = agent.initialize_xfer("READ", ours, theirs, peer, b"")
            return self._begin(agent, handle)

    def write(self, peer: str, local: Any, remote: Any, kind: tuple[str, str]) -> Transfer:
        """Begin to write pieces; each side is an array of (address, length, device).

        Raises:
            AgentError: it failed, perhaps with a part of it under way.
        """
        with self._call("a write") as agent:
            ours = agent.get_xfer_descs(local, _MEMORY[kind[0]])
            theirs = agent.get_xfer_descs(remote, _MEMORY[kind[1]])
            handle = agent.initialize_xfer("WRITE", ours, theirs, peer, b"")
            return self._begin(agent, handle)

    def ended(self, transfer: Transfer) -> bool:
        """Whether every byte is in place.

        Raises:
            AgentError: the read failed, and what it has under way only :meth:`end` is sure to
                stop; or the agent was ended.
        """
        with self._call("a transfer") as agent:
            if not transfer.done:
                transfer.done = self._settled(transfer, agent.check_xfer_state(transfer.handle))
            if transfer.done:
                self._forget(agent, transfer)
            return transfer.done

    def progress(self) -> None:
        """Let UCX go on with what peers ask of this agent."""
        with self._call("progress") as agent:
            agent.get_new_notifs()

    def end(self) -> None:
        """Destroy the agent: after the return nothing that it began can touch any memory.

        May be called twice.

        Raises:
            AgentError: something still holds it, so that it lives on.
        """
        with self._lock:
            agent, self._agent = self._agent, None
            if agent is not None:
                self._let_go(agent)
            if self._binding() is not None:
                gc.collect()
            if self._binding() is not None:
                raise AgentError("error", "a NIXL agent could not be destroyed; restart the engine")

    def _let_go(self, agent: Any) -> None:
        """Drop every reference to NIXL's own object, so that it ends.

        The wrapper and its handles may well live on, in the frames of an exception that is being
        handled for example.
        """
        for held in (*(transfer.handle for transfer in self._under_way), *self._lists):
            # What is unfinished may refuse; the agent's own end takes it along.
            with contextlib.suppress(Exception):
                held.release()
            held._agent, held._released = None, True
        self._under_way.clear()
        self._lists.clear()
        agent._leaked_xfer_handles.clear()
        agent.agent = None

    def _begin(self, agent: Any, handle: Any) -> Transfer:
        transfer = Transfer(handle, done=False)
        self._under_way.add(transfer)
        transfer.done = self._settled(transfer, agent.transfer(handle))
        if transfer.done:
            self._forget(agent, transfer)
        return transfer

    def _settled(self, transfer: Transfer, state: str) -> bool:
        if state == "ERR":
            raise AgentError("error", "NIXL says that the transfer failed")
        return state == "DONE"

    def _forget(self, agent: Any, transfer: Transfer) -> None:
        if transfer in self._under_way:
            self._under_way.discard(transfer)
            agent.release_xfer_handle(transfer.handle)
            transfer.handle = None

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[Any]:
        """The agent for one call, with NIXL's exceptions told apart."""
        with self._lock:
            if self._agent is None:
                raise AgentError("error", "the agent was destroyed, to fence a read or at close")
            try:
                yield self._agent
            except AgentError:
                raise
            except self._library.disconnected as error:
                raise AgentError("unreachable", f"the peer is gone: {error}") from error
            except Exception as error:
                raise AgentError(
                    "error", f"{what} failed: {type(error).__name__} {error}"
                ) from error


def _parameters(options: NixlOptions) -> dict[str, str]:
    # In this mode UCX notices that a peer is gone; others hang for ever.
    found = {"num_workers": "1", "ucx_error_handling_mode": "peer"}
    if options.devices:
        found["ucx_devices"] = ",".join(options.devices)
    return found


def _variables(options: NixlOptions) -> dict[str, str]:
    unsaid = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    return unsaid | options.environment


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set ``variables`` for as long as an agent is being made."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
