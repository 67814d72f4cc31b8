"""The commands of the golden scenario, each run so that its output is always the same."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.golden.recorded import Fact, every, facts, only
from typer.testing import CliRunner

from kvferry.cli.main import app
from kvferry.core.events import (
    NodeLeft,
    Requested,
    Retained,
    TransferFailed,
)
from kvferry.ids import SHORT_BYTES

FOLDER = Path(__file__).parent
RECORDING = FOLDER / "chaos.kvf"
EXPECTED = FOLDER / "expected"
TRACE = "trace.pftrace"
"""What the trace is written to; its packets are what is compared."""

FIXED = {"TZ": "UTC", "COLUMNS": "200", "NO_COLOR": "1"}
DIGEST = re.compile(r"digest [0-9a-f]{16,}")
"""Of the state, which has another one whenever a field is added to it; nobody can check it."""
SPEED = re.compile(r"at [\d,]+ a second")
"""How fast the machine is on which the command runs."""
UNSET = ("FORCE_COLOR", "CLICOLOR_FORCE", "TERMINAL_WIDTH", "KVFERRY_NATS")


class Golden(NamedTuple):
    """One command and the file that has what it prints."""

    name: str
    arguments: tuple[str, ...]

    @property
    def file(self) -> Path:
        return EXPECTED / f"{self.name}.txt"


def commands(recording: Path = RECORDING) -> list[Golden]:
    """Every command, with the ids and sequences as this recording has them."""
    found = facts(recording)
    torn = only(found, TransferFailed, request="torn-d")
    chat = every(found, Retained, request="turn-2-d", tier="cache")[-1]
    loading = _seq(found, only(found, Requested, request="left-d"))
    given_up = _seq(found, only(found, NodeLeft, node="d0"))
    last = str(found[-1].seq)
    requests = ("plan-4-d1", "torn-d", "left-d", "late-d", "turn-3-p", "lost-p0", "kept-p0")
    explained = {
        f"explain-request-{name}": only(found, Requested, request=name).request for name in requests
    }
    explained["explain-request-turn-2"] = "turn-2"
    explained["explain-session"] = "chat"
    explained["explain-transfer"] = torn.transfer
    explained["explain-block"] = chat.tail[:SHORT_BYTES].hex()
    listed = {
        "replay-while-loading": ("replay", "--to", loading),
        "replay-one-node": ("replay", "--to", loading, "--node", "d0"),
        "replay-end": ("replay", "--to", last),
        **{name: ("explain", what) for name, what in explained.items()},
        "diff-around-the-kill": ("diff", str(int(given_up) - 1), given_up),
        "audit": ("audit",),
        "advise": ("advise",),
        # The coordinator of the recording moves whatever is held.
        "whatif": ("whatif", "--recorded-cost", "off"),
        "whatif-slow-links": ("whatif", "--recorded-cost", "off", "--link-rate", "0.1x"),
        "export-perfetto": ("export", TRACE, "--perfetto"),
    }
    return [Golden(name, arguments) for name, arguments in listed.items()]


def output(golden: Golden, recording: Path = RECORDING) -> str:
    """The command as one would type it, what it prints, and its exit code if that is not 0."""
    with _fixed(recording):
        arguments = [*golden.arguments, "--file", RECORDING.name]
        result = CliRunner().invoke(app, arguments)
        text = f"$ kvferry {' '.join(arguments)}\n{result.stdout}"
        if result.stderr:
            text += f"(stderr)\n{result.stderr}"
        if result.exit_code:
            text += f"(exit code {result.exit_code})\n"
        if TRACE in golden.arguments and Path(TRACE).exists():
            # Perfetto's classes are an extra, and only this command needs them.
            from tests.golden.trace import drawn

            text += f"\n{drawn(Path(TRACE))}"
    text = SPEED.sub("at N a second", DIGEST.sub("digest ...", text))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


@contextlib.contextmanager
def _fixed(recording: Path) -> Iterator[None]:
    """An empty folder with the recording, one time zone, one width, no colours."""
    before, here = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(recording, Path(folder) / RECORDING.name)
        for name in UNSET:
            os.environ.pop(name, None)
        os.environ.update(FIXED)
        os.chdir(folder)
        time.tzset()
        try:
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)
            time.tzset()


def _seq(found: list[Fact], event: object) -> str:
    return next(str(fact.seq) for fact in found if fact.event is event)
