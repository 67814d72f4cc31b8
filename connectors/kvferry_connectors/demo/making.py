"""Makes a model in a process of its own, for torch is not needed in the demo's."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kvferry_connectors.demo.engines import child_environment
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.process import Child
from kvferry_connectors.demo.screen import Screen


async def make_model(
    folder: Path,
    code: str,
    *arguments: str,
    bound_s: float,
    run: RunFolder,
    screen: Screen,
) -> None:
    """Make a model in ``folder``, whole or not at all.

    Args:
        code: Python that makes it in the folder that is its first argument.
        arguments: its others.

    Raises:
        DemoError: it cannot be made.
    """
    made = run.path / "model"
    argv: Sequence[str] = [sys.executable, "-c", code, str(made), *arguments]
    maker = Child("making the model", argv, env=child_environment(run), log=run.log("model"))
    try:
        with screen.doing("making a small model with saved random weights"):
            await maker.start()
            ended = await maker.wait(bound_s)
    finally:
        await asyncio.shield(maker.kill())
    if ended:
        raise DemoError(f"the model cannot be made:\n{maker.tail()}", maker.log)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(made, folder)  # At once, so that a model that is there is whole.
    screen.say(f"made a model in {folder}")
