"""Memory by address, moved by the kernel's vectored calls without a view or a copy in Python.

A read may have tens of thousands of pieces. As views each costs Python most of a microsecond, at
both ends, under the GIL; as numbers in one array a tenth of that.
"""

from __future__ import annotations

import ctypes
import os
import socket
from array import array
from collections.abc import Sequence

from kvferry_backends.layout import HostPool

IOV_MAX = 1024
"""Pieces of memory that one system call takes."""

_WORDS_PER_PIECE = 2
_WORD_BYTES = 8


class _MessageHeader(ctypes.Structure):
    """``struct msghdr``."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


_libc = ctypes.CDLL(None, use_errno=True)
for _function in (_libc.sendmsg, _libc.recvmsg):
    _function.argtypes = (ctypes.c_int, ctypes.POINTER(_MessageHeader), ctypes.c_int)
    _function.restype = ctypes.c_ssize_t


class Vectors:
    """Pieces of memory in the order of the stream, used up as their bytes move.

    Whoever fills it keeps the pool's memory alive; buffers are kept by this object.
    """

    def __init__(self) -> None:
        self.length = 0
        """Bytes of all that was added."""
        self._pieces = array("Q")
        """As ``struct iovec``: an address, then a length."""
        self._at = 0
        """The first piece that is not used up."""
        self._kept: list[bytearray] = []

    def add(self, buffer: bytearray) -> None:
        """Add ``buffer``, which must not change its size from now on."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._kept.append(buffer)
        self._pieces.extend((address, len(buffer)))
        self.length += len(buffer)

    def add_blocks(self, pool: HostPool, blocks: Sequence[int]) -> None:
        """Add the bytes of ``blocks`` in stream order, adjacent ones joined."""
        addresses, lengths = pool.extents(blocks)
        added = array("Q", bytes(_WORD_BYTES * _WORDS_PER_PIECE * len(addresses)))
        added[0::_WORDS_PER_PIECE] = array("Q", addresses)
        added[1::_WORDS_PER_PIECE] = array("Q", lengths)
        self._pieces.extend(added)
        self.length += pool.block_bytes * len(blocks)

    @property
    def left(self) -> bool:
        """Whether a byte is still to be moved."""
        return self._at * _WORDS_PER_PIECE < len(self._pieces)

    def send(self, descriptor: int) -> int:
        """Send what one call takes; returns how many bytes that was.

        Raises:
            OSError: as of ``sendmsg``.
        """
        return self._call(_libc.sendmsg, descriptor, socket.MSG_NOSIGNAL)

    def receive(self, descriptor: int) -> int:
        """Fill what one call takes, waiting for all of it; returns the bytes that came.

        Raises:
            OSError: as of ``recvmsg``.
        """
        return self._call(_libc.recvmsg, descriptor, socket.MSG_WAITALL)

    def _call(self, function: ctypes._NamedFuncPointer, descriptor: int, flags: int) -> int:
        base, words = self._pieces.buffer_info()
        pieces = min(IOV_MAX, words // _WORDS_PER_PIECE - self._at)
        header = _MessageHeader(
            pieces=base + self._at * _WORDS_PER_PIECE * _WORD_BYTES, piece_count=pieces
        )
        count: int = function(descriptor, ctypes.byref(header), flags)
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._use_up(count, pieces)
        return count

    def _use_up(self, count: int, offered: int) -> None:
        """``count`` bytes of the next ``offered`` pieces have moved."""
        pieces = self._pieces
        at = self._at * _WORDS_PER_PIECE
        if count == sum(pieces[at + 1 : at + offered * _WORDS_PER_PIECE : _WORDS_PER_PIECE]):
            self._at += offered
            return
        while count:
            length = pieces[at + 1]
            if count < length:
                pieces[at] += count
                pieces[at + 1] = length - count
                break
            count -= length
            at += _WORDS_PER_PIECE
        self._at = at // _WORDS_PER_PIECE
