"""The demo of TileRT from beginning to end."""

from __future__ import annotations

import json
from pathlib import Path

from kvferry.core.events import (
    Requested,
    Retained,
    SendBegan,
    SendEnded,
    SlotChanged,
    Transferred,
)
from kvferry.errors import LedgerError
from kvferry_connectors.demo.errors import DemoError, DemoFound
from kvferry_connectors.demo.folder import RunFolder, run_folder
from kvferry_connectors.demo.ledgercheck import check_ledger
from kvferry_connectors.demo.making import make_model
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.stack import running
from kvferry_connectors.demo.texts import Conversation
from kvferry_connectors.demo.tilert import package
from kvferry_connectors.demo.tilert.asking import Asker
from kvferry_connectors.demo.tilert.cases import Cases
from kvferry_connectors.demo.tilert.figures import PoolFigures, PoolTurn
from kvferry_connectors.demo.tilert.settings import TilertDemoSettings
from kvferry_connectors.demo.tilert.stack import TilertStack

NEEDED = (SlotChanged, SendBegan, SendEnded, Requested, Retained, Transferred)
"""Events that a run must have."""


MODEL = "tilert-model-1"
"""The model's folder in the cache; another number for another model."""
MAKE_MODEL = """
import sys
from pathlib import Path
from kvferry_connectors.demo.tilert.model import mla_model
mla_model(Path(sys.argv[1]))
"""


def check_tilert() -> None:
    """
    Raises:
        DemoError: TileRT's package or NIXL is not here.
    """
    why = package.missing()
    if why:
        raise DemoError(f"the demo with --tilert cannot run: {why}")


async def run_tilert_demo(settings: TilertDemoSettings, screen: Screen) -> PoolFigures:
    """Start everything, hold the conversations, check, and stop everything.

    Raises:
        DemoError: something does not work at all; what works and is wrong stands in the figures.
    """
    with run_folder(settings.folder, keep=settings.keep) as run:
        model = await _model(settings, run, screen)
        try:
            async with running(TilertStack(settings, run, model, screen)) as stack:
                figures = await _converse(stack)
        except LedgerError as error:
            raise DemoError(f"the ledger fails: {error}", run.logs) from error
        figures.seconds = screen.seconds
        if figures.problems():
            raise DemoFound(figures, run.logs)
        return figures


async def _model(settings: TilertDemoSettings, run: RunFolder, screen: Screen) -> Path:
    """The model, made on the first run and kept."""
    folder = settings.cache / MODEL
    if not folder.is_dir():
        await make_model(folder, MAKE_MODEL, bound_s=settings.model_s, run=run, screen=screen)
    return folder


async def _converse(stack: TilertStack) -> PoolFigures:
    figures, settings, screen = PoolFigures(), stack.settings, stack.screen
    asker = Asker(stack, figures)
    for name, lengths, stream in (
        ("A", settings.turns, True),
        ("B", settings.whole_turns, False),
    ):
        conversation = Conversation(name)
        for number, length in enumerate(lengths, 1):
            with screen.doing(f"conversation {name}, turn {number}"):
                turn = await asker.turn(conversation, length, stream=stream)
            figures.turns.append(turn)
            screen.say(_line(turn))
    cases = Cases(stack, asker)
    await cases.full()
    moved = Conversation("C")
    await cases.drain(moved)
    await cases.kill(moved)
    figures.cases = cases.figures
    with screen.doing("checking the ledger"):
        figures.ledger = await check_ledger(stack, [], NEEDED)
        found = json.loads(await stack.command("audit", "--json", fine=(0, 1)))
        figures.violations = [one["story"] for one in found["violations"]]
        sample = next(t for t in figures.turns if t.conversation == "A" and t.turn == 2)
        figures.explained = await stack.command("explain", sample.request)
    return figures


def _line(turn: PoolTurn) -> str:
    pulled = f"pulled {turn.pulled_tokens} from {turn.source}, " if turn.pulled_tokens else ""
    return (
        f"{turn.conversation}{turn.turn}: {turn.prompt_tokens} tokens, {pulled}computed "
        f"{turn.computed_tokens}; {turn.sent_bytes / 1000:,.0f} kB to {turn.node} in "
        f"{turn.send_ms:.0f} ms, {turn.returned_blocks} blocks kept there"
    )
