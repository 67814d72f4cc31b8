"""What each command answers about a recorded chaos run, letter by letter.

``recording.py`` tells what happened in it. Each file under ``expected/`` was read by a person and
compared with that; where a command's wording changes for the better, ``python -m tests.golden``
writes them anew, and the difference is to be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.commands import EXPECTED, FOLDER, RECORDING, Golden, commands, output
from tests.golden.recorded import altered, every, facts, only

from kvferry.core.events import PinEnded, Requested, RequestEnded

RECORDING_BYTES_MAX = 300_000
GOLDENS = commands()


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden.name for golden in GOLDENS])
def test_the_command_gives_the_checked_answer(golden: Golden) -> None:
    if golden.name == "export-perfetto":
        pytest.importorskip("perfetto")
    assert output(golden) == golden.file.read_text(), (
        f"if the new answer of {golden.name} is the better one: python -m tests.golden"
    )


def test_every_expected_answer_has_its_command() -> None:
    assert {golden.file for golden in GOLDENS} == set(EXPECTED.iterdir())
    assert RECORDING.stat().st_size < RECORDING_BYTES_MAX


def test_the_recording_says_what_the_engines_said() -> None:
    """The engines' own replies, noted outside of the ledger when it was recorded."""
    found = facts(RECORDING)
    happened: list[dict[str, Any]] = json.loads((FOLDER / "happened.json").read_text())
    assert len(happened) >= 20
    for said in happened:
        ended = only(found, RequestEnded, request=said["request"])
        if said.get("aborted"):
            assert ended.outcome == "aborted"
            continue
        assert (ended.prompt_tokens, ended.output_tokens) == (said["prompt"], said["answer"])
        assert (ended.pulled_tokens, ended.local_tokens, ended.computed_tokens) == (
            said["pulled"],
            said["local"],
            said["computed"],
        )
        assert ended.source == said.get("from", "")
        if not said["pulled"] and said["miss"] not in ("", "local"):
            assert ended.miss == said["miss"]


def test_control_one_altered_event_changes_what_it_should(tmp_path: Path) -> None:
    """The source of a prediction's transfer says that its blocks changed: exactly what tells of
    that transfer changes."""
    found = facts(RECORDING)
    transfer = only(found, Requested, request="plan-4-d1").transfer
    assert every(found, PinEnded, transfer=transfer, how="intact")

    def alter(event: object) -> Any:
        if isinstance(event, PinEnded) and event.transfer == transfer:
            return PinEnded(
                transfer=transfer,
                target=event.target,
                granted=event.granted,
                how="void",
                held_ms=event.held_ms,
            )
        return event

    copy = tmp_path / "altered.kvf"
    assert altered(RECORDING, copy, alter) == 1
    told = {one.name: _differing(one, copy) for one in GOLDENS if one.name != "export-perfetto"}
    told = {name: lines for name, lines in told.items() if lines}
    assert told.keys() == {"audit", "explain-request-plan-4-d1"}
    (broken,) = [line for line in told["audit"] if line.startswith("BROKEN source_decides")]
    assert transfer in broken
    (pin,) = [line for line in told["explain-request-plan-4-d1"] if "d0 held" in line]
    assert "blocks were reused meanwhile" in pin


def _differing(golden: Golden, recording: Path) -> list[str]:
    """Lines that the command prints of another recording, and not of the golden one."""
    known = golden.file.read_text().splitlines()
    return [line for line in output(golden, recording).splitlines() if line not in known]


def test_control_a_copy_with_nothing_altered_changes_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "same.kvf"
    assert altered(RECORDING, copy, lambda event: event) == 0
    audit = next(one for one in GOLDENS if one.name == "audit")
    assert output(audit, copy) == audit.file.read_text()
