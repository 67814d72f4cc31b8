"""A read that a fence refuses: the source is another process by now. Told by `kvferry explain`.

Engines that stop and start again under their address, with hints of their earlier lives on the
way, are easily had in the simulator only.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.sim.running import sim

from kvferry.core.envelope import Batch
from kvferry.core.events import NodeJoined, Requested, TransferFailed
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.step import read_batch

SEEDS = "6"
KNOBS = {
    "fixed_ports": "true",
    "fault_kinds": '["stop"]',
    "faults_per_s": "4.0",
    "think_s": "0.3",
    "clients": "5",
    "nodes": "3",
    "blocks": "96",
    "stream_bytes": str(1 << 30),
    "ledger_loses": "0",
    "read_fails": "0",
    "read_hangs": "0",
    "abort_share": "0",
    "overlap_share": "0",
}
TOLD_MAX = 3
KVFERRY = str(Path(sys.executable).parent / "kvferry")


async def facts(path: Path) -> list[Batch]:
    return [read_batch(stored) async for stored in ArchiveLog(path).read(FACTS_STREAM)]


def fenced(batches: list[Batch]) -> list[TransferFailed]:
    """Transfers that a source refused because it is not the process that was meant."""
    return [
        entry.event
        for batch in batches
        for entry in batch.entries
        if isinstance(entry.event, TransferFailed) and entry.event.detail.startswith("incarnation")
    ]


def test_a_refusal_by_fence_is_told_with_both_processes(tmp_path: Path) -> None:
    knobs = [part for name, value in KNOBS.items() for part in ("--knob", f"{name}={value}")]
    options = ("--profile", "ledger", "--seeds", SEEDS, "--ledgers", str(tmp_path))
    code, outcomes, said = sim(tmp_path, *options, *knobs)
    assert code == 0, said
    assert not any(outcome["violations"] for outcome in outcomes), "no answer was wrong"
    told = 0
    for path in sorted(tmp_path.glob("ledger-*.kvf")):
        batches = asyncio.run(facts(path))
        for failed in fenced(batches)[:1]:
            if told < TOLD_MAX:
                explains(path, batches, failed)
                told += 1
    assert told, f"no hint of an earlier life was met: {said}"


def explains(path: Path, batches: list[Batch], failed: TransferFailed) -> None:
    """The command names the cause, where it was met, and both processes of the source."""
    (asked,) = [
        entry.event
        for batch in batches
        for entry in batch.entries
        if isinstance(entry.event, Requested) and entry.event.transfer == failed.transfer
    ]
    lives = [
        entry.event.incarnation
        for batch in batches
        for entry in batch.entries
        if isinstance(entry.event, NodeJoined) and batch.node == failed.source
    ]
    now = failed.detail.partition(" lives as ")[2].partition(",")[0]
    assert asked.source_incarnation in lives
    assert now != asked.source_incarnation
    command = [KVFERRY, "explain", failed.transfer, "--file", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    earlier = f"an earlier process of {failed.source} (process {asked.source_incarnation})"
    assert f"refused: fenced: what was offered was in the memory of {earlier}" in text
    assert now in text
    document = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    causes = [one for one in json.loads(document)["causes"] if one["request"] == failed.request]
    assert (causes[0]["how"], causes[0]["reason"], causes[0]["stage"]) == (
        "refused",
        "fence",
        "pin",
    )
    assert causes[0]["source"] == failed.source
