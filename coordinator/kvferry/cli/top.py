"""`kvferry top`: what happens now, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.keyboard import QUIT, Keyboard, terminal_fd
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.cli.replicas import LISTEN_S
from kvferry.cli.screen import Screen
from kvferry.cli.stopping import StopRequest, unless_stopped
from kvferry.cli.topview import KEYS, draw
from kvferry.errors import KVFerryError, LedgerError
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.hearing import Hearing
from kvferry.replay.live.rows import Around, Frame, Replica

PAUSE = "p"
END_ASKED_EVERY_S = 1.0


@guard.guarded
def command(
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval-s", min=0.1, max=60, metavar="SECONDS", help="Time between two frames."
        ),
    ] = 1.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one frame and end; also where stdout is no terminal."),
    ] = False,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch nodes, leases, requests, transfers, misses and TileRT slots live.

    Keys: q quits, p pauses the screen.

    Folds the ledger itself and follows it, so it needs no coordinator. While NATS is away it shows
    what it knows and why there is nothing newer. --json prints one frame, as --once does.

    Examples:

      kvferry top

      kvferry top --once --json | jq '.spaces[].windows'
    """
    single = once or as_json or file is not None or not sys.stdout.isatty()
    if single:
        shown = guard.run(_one(nats, file))
        if as_json:
            print_document(shown)
        else:
            render.console().print(draw(shown))
    else:
        guard.run(_watch(nats, interval_s))


async def _one(nats: str | None, file: Path | None) -> Frame:
    async with open_log(nats, file) as log, _heard(log) as hearing:
        live = Live(log)
        await _begin(live)
        if hearing is not None:
            await hearing.led(LISTEN_S)
        # An exported file's present is its end.
        now_ms = live.folded_ms if file is not None else live.now_ms()
        return _frame(live, hearing, now_ms, live.state.position, "")


@asynccontextmanager
async def _heard(log: LogPort) -> AsyncIterator[Hearing | None]:
    """What is said on the bus; None where there is none."""
    if not isinstance(log, JetStreamLedger):
        yield None
        return
    hearing = Hearing()
    await hearing.start(log)
    try:
        yield hearing
    finally:
        await hearing.stop()


async def _watch(nats: str | None, interval_s: float) -> None:
    async with open_log(nats, None) as log, _heard(log) as hearing:
        assert isinstance(log, JetStreamLedger)
        live = Live(log)
        # Outermost: whatever ends the view gives the terminal back before signals kill again.
        with StopRequest(also=(signal.SIGHUP, signal.SIGQUIT)) as stop:
            await unless_stopped(stop, _begin(live))
            if not stop.event.is_set():
                await _Watch(log, live, hearing, interval_s).run(stop)


async def _begin(live: Live) -> None:
    with progress("folding") as report:
        await live.begin(report)


class _Watch:
    """The tasks of the live view; ends by a key, a signal, or a failure of one of them."""

    def __init__(
        self, ledger: JetStreamLedger, live: Live, hearing: Hearing | None, interval_s: float
    ) -> None:
        self._ledger = ledger
        self._live = live
        self._hearing = hearing
        self._interval_s = interval_s
        self._last_seq = live.state.position
        self._paused = False
        self._pressed = asyncio.Event()

    async def run(self, stop: StopRequest) -> None:
        fd = terminal_fd()
        with Screen() as screen, contextlib.ExitStack() as stack:
            keyboard = stack.enter_context(Keyboard(fd)) if fd is not None else None
            works = [
                asyncio.create_task(stop.event.wait(), name="stop request"),
                asyncio.create_task(self._live.follow(), name="follow"),
                asyncio.create_task(self._ask_end(), name="end of the ledger"),
                asyncio.create_task(self._draw(screen, keyboard is not None), name="draw"),
            ]
            if keyboard is not None:
                works.append(asyncio.create_task(self._keys(keyboard), name="keys"))
            try:
                done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        for work in done:
            work.result()
            if work.get_name() == "follow":
                raise KVFerryError("the ledger can be followed no further: its link was closed")

    async def _keys(self, keyboard: Keyboard) -> None:
        """Until the key to quit."""
        while (key := await keyboard.key()).lower() != QUIT:
            if key.lower() == PAUSE:
                self._paused = not self._paused
                self._pressed.set()

    async def _draw(self, screen: Screen, keys: bool) -> None:
        shown = self._now()
        while True:
            if not self._paused:
                shown = self._now()
            screen.show(
                draw(
                    shown,
                    keys=KEYS if keys else "",
                    paused=self._paused,
                    remark=screen.remark,
                )
            )
            self._pressed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._paused else self._interval_s):
                    await self._pressed.wait()

    async def _ask_end(self) -> None:
        """How far the ledger is, which shows how far behind anybody is."""
        while True:
            # What is wrong with the ledger, the frame says from the link itself.
            with contextlib.suppress(LedgerError):
                self._last_seq = (await self._ledger.bounds(FACTS_STREAM)).last
            await asyncio.sleep(END_ASKED_EVERY_S)

    def _now(self) -> Frame:
        trouble = self._ledger.why_down()
        if trouble:
            trouble = f"not connected to {self._ledger.url}: {trouble}"
        return _frame(
            self._live,
            self._hearing,
            self._live.now_ms(),
            self._last_seq,
            trouble or self._live.trouble,
        )


def _frame(live: Live, hearing: Hearing | None, now_ms: int, last_seq: int, trouble: str) -> Frame:
    end = max(last_seq, live.state.position)
    replicas = [] if hearing is None else hearing.replicas()
    around = Around(
        now_ms=now_ms,
        since_ms=live.since_ms,
        last_seq=end,
        folded_ms=live.folded_ms,
        trouble=trouble,
        replicas=tuple(
            Replica(
                replica=one.replica,
                leader=one.leader,
                term=one.term,
                lag_messages=max(0, end - one.position),
                silent_s=silent_s,
            )
            for one, silent_s in replicas
        ),
        silent_s={} if hearing is None else hearing.nodes(),
    )
    return frame(live.state, live.recent, around)
