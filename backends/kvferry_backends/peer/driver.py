"""The few calls of the CUDA driver that sharing memory needs, with the GIL released.

PyTorch can share memory too, but unmaps it inside a destructor that holds the GIL and waits for
a stream: that would stop the engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvferry.errors import BackendError, BackendUnavailable

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
# Of CUpointer_attribute.
_DEVICE_ORDINAL = 9
_IS_LEGACY_IPC_CAPABLE = 10


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class Extent(NamedTuple):
    """One device allocation, as the driver knows it."""

    base: int
    size: int


class CudaDriver:
    """Calls in one CUDA context, from any thread."""

    def __init__(self) -> None:
        """Takes the context that is current on this thread.

        Raises:
            BackendUnavailable: there is no driver, or no context is current.
        """
        try:
            self._library: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise BackendUnavailable(f"the CUDA driver cannot be loaded: {error}") from error
        pointer, size = ctypes.c_uint64, ctypes.c_size_t
        for name, arguments in {
            "cuCtxGetCurrent": [ctypes.POINTER(ctypes.c_void_p)],
            "cuCtxPushCurrent_v2": [ctypes.c_void_p],
            "cuCtxPopCurrent_v2": [ctypes.POINTER(ctypes.c_void_p)],
            "cuMemGetAddressRange_v2": [ctypes.POINTER(pointer), ctypes.POINTER(size), pointer],
            "cuPointerGetAttribute": [ctypes.c_void_p, ctypes.c_int, pointer],
            "cuIpcGetMemHandle": [ctypes.POINTER(_Handle), pointer],
            "cuIpcOpenMemHandle_v2": [ctypes.POINTER(pointer), _Handle, ctypes.c_uint],
            "cuIpcCloseMemHandle": [pointer],
            "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
        }.items():
            getattr(self._library, name).argtypes = arguments
        context = ctypes.c_void_p()
        self._check("cuCtxGetCurrent", ctypes.byref(context))
        if not context:
            raise BackendUnavailable("no CUDA context is current; allocate on the device first")
        self._context = context

    def extent(self, address: int) -> Extent:
        """The allocation that ``address`` lies in.

        Raises:
            BackendError: it lies in none.
        """
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        with self._current():
            self._check("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return Extent(base.value, size.value)

    def can_share(self, address: int) -> bool:
        """Whether the memory at ``address`` is of the kind that CUDA IPC shares.

        False for memory made by virtual memory management.

        Raises:
            BackendError: it is no device memory.
        """
        return bool(self._attribute(_IS_LEGACY_IPC_CAPABLE, address))

    def device_of(self, address: int) -> int:
        """On which GPU, as this process counts them, the memory at ``address`` lies.

        Raises:
            BackendError: it is no device memory.
        """
        return self._attribute(_DEVICE_ORDINAL, address)

    def share(self, base: int) -> bytes:
        """A handle with which another process of this host can map the allocation at ``base``.

        Raises:
            BackendError: the driver refuses.
        """
        handle = _Handle()
        with self._current():
            self._check("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; returns its address here.

        The context decides which GPU can read it: it must be that of the target.

        Raises:
            BackendError: the process has ended, or the GPUs cannot reach each other.
        """
        address = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        with self._current():
            self._check("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, _LAZY_PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        """Unmap what :meth:`open` mapped. No kernel may read it any more.

        Raises:
            BackendError: the driver refuses.
        """
        with self._current():
            self._check("cuIpcCloseMemHandle", address)

    def _attribute(self, attribute: int, address: int) -> int:
        value = ctypes.c_int(0)
        with self._current():
            self._check("cuPointerGetAttribute", ctypes.byref(value), attribute, address)
        return value.value

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            said = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(said))
            word = said.value.decode() if said.value else "unknown"
            raise BackendError(f"{name} failed: {word} ({code})")
