"""Figures reach their file whatever becomes of the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.bench.results import publish, write


def test_figures_are_in_the_file_when_the_reader_closes_the_pipe(tmp_path: Path) -> None:
    def closed() -> None:
        raise BrokenPipeError

    file = tmp_path / "figures.json"
    with pytest.raises(BrokenPipeError):
        write({"step_us_p99": 4.9}, file, closed)
    told = json.loads(file.read_text())
    assert told.pop("circumstances").keys() >= {"date", "cores", "python"}
    assert told == {"step_us_p99": 4.9}


def test_a_dash_prints_the_document_alone(capsys: pytest.CaptureFixture[str]) -> None:
    publish("what was measured", {"step_us_p99": 4.9}, Path("-"))
    printed = capsys.readouterr().out
    assert json.loads(printed)["step_us_p99"] == 4.9
    assert not Path("-").exists()
    publish("what was measured", {"step_us_p99": 4.9}, None)
    assert "what was measured" in capsys.readouterr().out
