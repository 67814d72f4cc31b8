"""A target that is frozen past its pin's deadline reads memory that was reused meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    ManualClock,
    Source,
    eventually,
    freeze,
    identity,
    thaw,
)

from kvferry.node.peers.server import PeerServer


def _freeze_past_the_deadline(tmp_path: Path, mode: str) -> tuple[str, Source]:
    """Freeze a target before it reads, reuse its block, let it go on; returns what it says."""
    clock = ManualClock()
    source = Source(clock=clock)
    source.offer("a", 1)
    server = PeerServer(KEY, identity("d0", SOURCE_LIFE), source.table)
    server.start()
    memory, start = tmp_path / "memory", tmp_path / "start"
    memory.write_text("promised")
    script = str(Path(__file__).with_name("target_process.py"))
    target = subprocess.Popen(
        [sys.executable, script, server.address, str(memory), str(start), mode],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert target.stdout is not None
        assert target.stdout.readline() == "reading\n"
        freeze(target)
        clock.now_s += 61
        assert eventually(lambda: source.how() == [("t", "deadline")])
        source.table.reused(0)
        memory.write_text("overwritten")
        start.write_text("")
        thaw(target)
        said, _ = target.communicate(timeout=BOUND_S)
    finally:
        target.kill()
        target.wait(BOUND_S)
        server.close()
    return said.strip(), source


def test_it_finds_out_when_it_settles(tmp_path: Path) -> None:
    said, source = _freeze_past_the_deadline(tmp_path, "settle")
    assert said in {"False void overwritten", "False refused overwritten"}
    assert source.how() == [("t", "deadline")]
    assert source.table.pinned_blocks() == set()


def test_without_settling_it_would_use_the_wrong_bytes(tmp_path: Path) -> None:
    """The negative control of the test above."""
    said, _ = _freeze_past_the_deadline(tmp_path, "skip")
    assert said == "True - overwritten"
