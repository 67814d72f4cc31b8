"""Processes of a benchmark: what is measured has a process of its own, and none is left behind."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvferry.errors import KVFerryError
from kvferry.ledger.server_process import ending_with_us

STOP_WAIT_S = 15.0
ERROR_CHARS_MAX = 2_000


async def answer_of(module: str, *arguments: str, wait_s: float) -> bytes:
    """Run ``python -m module`` to its end and return what it printed.

    Raises:
        KVFerryError: it failed, or did not end within ``wait_s``.
    """
    async with child(module, *arguments) as process:
        try:
            async with asyncio.timeout(wait_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise KVFerryError(f"{module} did not end within {wait_s:g} s") from None
    if process.returncode:
        text = err.decode(errors="replace").strip()[-ERROR_CHARS_MAX:]
        raise KVFerryError(f"{module} failed with code {process.returncode}: {text}")
    return out


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Process]:
    """``python -m module`` while the block runs; ended politely, then by force."""
    process = await asyncio.create_subprocess_exec(
        *ending_with_us(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,  # Ctrl-C is for us; we end it in order
    )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_WAIT_S):
            # Not wait(): a child that fills a pipe which nobody reads never ends.
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
