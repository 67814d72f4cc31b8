"""The demo from beginning to end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import msgspec

from kvferry.errors import LedgerError
from kvferry_connectors.demo.arms import hold_conversations
from kvferry_connectors.demo.asking import Asker
from kvferry_connectors.demo.cases import Cases
from kvferry_connectors.demo.comparison import Comparison
from kvferry_connectors.demo.errors import DemoError, DemoFound
from kvferry_connectors.demo.figures import Figures
from kvferry_connectors.demo.folder import RunFolder, run_folder
from kvferry_connectors.demo.ledgercheck import check_ledger
from kvferry_connectors.demo.making import make_model
from kvferry_connectors.demo.model import MARKER
from kvferry_connectors.demo.reference import Reference
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import DemoSettings
from kvferry_connectors.demo.stack import Stack, running

NEEDED = ("vllm", "torch", "transformers", "tokenizers")
MAKE_MODEL = """
import sys
from pathlib import Path
import msgspec
from kvferry_connectors.demo.model import Shape, ensure_model
ensure_model(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Shape))
"""


def check_installed() -> None:
    """
    Raises:
        DemoError: something that the demo needs is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"the demo needs {', '.join(missing)}, which this Python does not have; "
            "`make demo` in a checkout installs all of it"
        )


async def run_demo(settings: DemoSettings, screen: Screen) -> Figures:
    """Start everything, hold the conversations, check, and stop everything.

    Raises:
        DemoError: something does not work at all; what works and is wrong stands in the figures.
    """
    with run_folder(settings.folder, keep=settings.keep) as run:
        model = await _model(settings, run, screen)
        reference = Reference(settings, run, model)
        try:
            async with running(Stack(settings, run, model, screen)) as stack:
                figures = await _converse(stack, reference)
        except LedgerError as error:
            raise DemoError(f"the ledger fails: {error}", run.logs) from error
        finally:
            await asyncio.shield(reference.stop())
        figures.seconds = screen.seconds
        if settings.keep:
            screen.say(
                f"kept in {run.path}; its ledger can be looked at again with `kvferry up --store "
                f"{run.path / 'ledger'}`, and then `kvferry events` or `kvferry explain ID`"
            )
        if figures.problems():
            raise DemoFound(figures, run.logs)
        return figures


async def _model(settings: DemoSettings, run: RunFolder, screen: Screen) -> Path:
    """The model, made on the first run and kept."""
    shape = settings.shape
    folder = settings.cache / f"demo-model-{shape.hidden}x{shape.layers}-{shape.seed}"
    marker = folder / MARKER
    if marker.is_file() and marker.read_bytes() == msgspec.json.encode(shape):
        return folder
    shaped = msgspec.json.encode(shape).decode()
    await make_model(folder, MAKE_MODEL, shaped, bound_s=settings.model_s, run=run, screen=screen)
    return folder


async def _converse(stack: Stack, reference: Reference) -> Figures:
    asker = Asker(stack)
    figures = Figures()
    conversations, figures.turns = await hold_conversations(asker, stack.settings, stack.screen)
    cases = Cases(stack, asker)
    await cases.edit(conversations["A"])
    await cases.strip()
    comparison = Comparison(reference, figures)
    await cases.restart(comparison)
    figures.cases = cases.figures
    with stack.screen.doing("checking the ledger"):
        figures.ledger = await check_ledger(stack, cases.lost)
        sample = next(t for t in figures.turns if t.conversation == "A" and t.turn == 2)
        figures.explained = await stack.command("explain", sample.request)
    with stack.screen.doing("comparing every answer with an engine without any transfer"):
        await comparison.catch_up(asker.compared)
    return figures


def cache_folder() -> Path:
    """Where the model is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if base else Path.home() / ".cache") / "kvferry"
