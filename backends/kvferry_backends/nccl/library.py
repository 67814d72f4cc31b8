"""nccl4py as this backend uses it: communicators of two ranks that never block."""

from __future__ import annotations

import logging
from typing import Any

from kvferry.errors import BackendUnavailable
from kvferry_backends.nccl.pipe import PipeError

RANKS = 2

_log = logging.getLogger("kvferry.backends.nccl")


class Nccl:
    """The library of this process."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            BackendUnavailable: nccl4py or libnccl is missing; the text says which.
        """
        try:
            import nccl.bindings
            import nccl.core
        except ImportError as error:
            raise BackendUnavailable(
                f"backend nccl needs nccl4py, which cannot be imported ({error}); "
                "install kvferry[nccl] beside a CUDA build of torch"
            ) from error
        self._core: Any = nccl.core
        self._errors: tuple[type[Exception], ...] = (
            nccl.bindings.nccl.NCCLError,
            nccl.core.NcclInvalid,
            RuntimeError,
            ValueError,
        )
        loaded = nccl.core.get_version().libnccl
        if loaded is None:
            raise BackendUnavailable(
                "backend nccl needs libnccl.so.2, which cannot be found; "
                "install a CUDA build of torch, which brings it"
            )
        self.version = str(loaded.version)

    def unique_id(self) -> bytes:
        """A new communicator's name.

        Raises:
            PipeError: NCCL cannot make one.
        """
        try:
            return bytes(self._core.get_unique_id())
        except self._errors as error:
            raise PipeError(
                f"NCCL makes no communicator ({error}); does NCCL_SOCKET_IFNAME name an interface "
                "that both hosts reach?"
            ) from error

    def join(self, unique_id: bytes, rank: int, max_ctas: int) -> Communicator:
        """Begin to connect, on the current CUDA device. Returns at once.

        Args:
            max_ctas: the most thread blocks that a kernel may have; 0 leaves it to NCCL.

        Raises:
            PipeError: NCCL refuses.
        """
        config = self._core.NCCLConfig(
            blocking=False, comm_name="kvferry", max_ctas=max_ctas or None
        )
        try:
            made = self._core.Communicator.init(
                RANKS, rank, self._core.UniqueId.from_bytes(unique_id), config
            )
        except self._errors as error:
            raise PipeError(f"NCCL does not connect: {error}") from error
        return Communicator(made, 1 - rank, self._errors)


SUCCESS, IN_PROGRESS = 0, 7
"""Of ``ncclResult_t``; releases of nccl4py give it as a number or as an enumeration of numbers."""


class Communicator:
    """Two ranks. Used by one thread."""

    def __init__(self, made: Any, other: int, errors: tuple[type[Exception], ...]) -> None:
        self._made = made
        self._other = other
        self._errors = errors

    def ready(self) -> bool:
        """Whether NCCL is done with the last call, so that the next may be made.

        Raises:
            PipeError: the communicator has failed.
        """
        try:
            state = int(self._made.get_async_error())
            if state == SUCCESS:
                return True
            if state == IN_PROGRESS:
                return False
            detail = self._made.get_last_error()
        except self._errors as error:
            raise PipeError(f"NCCL does not say how it is: {error}") from error
        raise PipeError(f"NCCL failed with result {state}: {detail or 'see NCCL_DEBUG=WARN'}")

    def send(self, part: Any, stream: int) -> None:
        """Queue the sending of a CUDA tensor of bytes.

        Raises:
            PipeError: NCCL refuses.
        """
        try:
            self._made.send(part, self._other, stream=stream)
        except self._errors as error:
            raise PipeError(f"ncclSend failed: {error}") from error

    def receive(self, part: Any, stream: int) -> None:
        """Queue the receiving of a CUDA tensor of bytes.

        Raises:
            PipeError: NCCL refuses.
        """
        try:
            self._made.recv(part, self._other, stream=stream)
        except self._errors as error:
            raise PipeError(f"ncclRecv failed: {error}") from error

    def abort(self) -> None:
        """Make its kernels end. Unlike a destroy it needs nothing from the other rank."""
        try:
            self._made.abort()
        except self._errors as error:
            _log.warning("ncclCommAbort failed: %s", error)
