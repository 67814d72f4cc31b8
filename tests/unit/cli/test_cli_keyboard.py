"""Single keys from a terminal that is put back whatever happens."""

from __future__ import annotations

import asyncio
import os
import pty
import termios
from collections.abc import Iterator

import pytest

from kvferry.cli.keyboard import KEYS_WAITING_MAX, QUIT, Keyboard


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal: ours, and the one that a program sees."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(theirs)
    os.close(ours)


async def key(keyboard: Keyboard) -> str:
    async with asyncio.timeout(60):
        return await keyboard.key()


async def test_keys_come_one_by_one_without_a_line_end(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with Keyboard(theirs) as keyboard:
        os.write(ours, b"pn")
        assert [await key(keyboard), await key(keyboard)] == ["p", "n"]


async def test_an_error_puts_the_terminal_back_too(terminal: tuple[int, int]) -> None:
    _, theirs = terminal
    before = termios.tcgetattr(theirs)

    def fail() -> None:
        with Keyboard(theirs):
            assert termios.tcgetattr(theirs) != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert termios.tcgetattr(theirs) == before


async def test_keys_typed_ahead_are_bounded(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with Keyboard(theirs) as keyboard:
        for _ in range(3):
            os.write(ours, b"x" * KEYS_WAITING_MAX)
        assert await key(keyboard) == "x"
        assert keyboard._keys.qsize() <= KEYS_WAITING_MAX


async def test_a_terminal_that_is_gone_quits() -> None:
    ours, theirs = pty.openpty()
    try:
        with Keyboard(theirs) as keyboard:
            os.close(ours)
            assert await key(keyboard) == QUIT
    finally:
        os.close(theirs)
