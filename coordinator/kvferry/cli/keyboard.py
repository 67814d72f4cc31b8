"""Single keys from a terminal, which is put back as it was whatever happens."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from typing import Any

KEYS_WAITING_MAX = 64
"""Keys typed ahead; later ones are dropped."""
QUIT = "q"
_DISABLED = b"\0"


class Keyboard:
    """Use as a context manager on the event loop; stdin must be a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._keys: asyncio.Queue[str] = asyncio.Queue(KEYS_WAITING_MAX)
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._fd)
        try:
            tty.setcbreak(self._fd, termios.TCSANOW)
            changed = termios.tcgetattr(self._fd)
            # Ctrl-Z would leave a shell with a terminal that is not put back.
            changed[6][termios.VSUSP] = _DISABLED
            termios.tcsetattr(self._fd, termios.TCSANOW, changed)
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        self._restore()

    def _restore(self) -> None:
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        except termios.error:
            return  # The terminal itself is gone.

    async def key(self) -> str:
        """The next key; :data:`QUIT` once the terminal is gone."""
        return await self._keys.get()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, KEYS_WAITING_MAX)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        for key in data.decode(errors="replace") or QUIT:
            if not self._keys.full():
                self._keys.put_nowait(key)


def terminal_fd() -> int | None:
    """Stdin where it is a terminal."""
    return sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
