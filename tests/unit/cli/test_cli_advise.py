"""`kvferry advise` as an operator calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.advise.recorded import conversations, strangers, written
from tests.unit.cli.processes import Up
from tests.unit.cli.running import document, run, runner

from kvferry.cli import guard
from kvferry.cli.main import app

RATES = (
    *("--prefill-tokens-per-s", "512"),
    *("--kv-bytes-per-token", "1"),
    *("--link-gb-per-s", "0.000001"),
)


def test_a_live_ledger_and_its_export_give_the_same_advice(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)
    file = tmp_path / "a.kvf"
    run("export", str(file))
    live = document("advise")
    assert live["kind"] == "ledger"
    assert live["hits"] == {"pulled": 1}
    assert live["verdict"]["word"] == "too_little_data"
    monkeypatch.setenv("KVFERRY_NATS", "nats://127.0.0.1:9")
    from_file = document("advise", "--file", str(file))
    assert from_file["shares"] == live["shares"]
    assert from_file["ttft"] == live["ttft"]
    assert "a.kvf" in from_file["of"]


def test_a_trace_needs_no_ledger_and_every_form_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_NATS", "nats://127.0.0.1:9")
    trace = written(tmp_path, conversations(apart_s=15))
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    said = run("advise", "--from", str(trace), *RATES, "--html", str(page), "--markdown", str(text))
    for told in (said, page.read_text(), text.read_text()):
        assert "Enable it." in told
        assert "15.2%" in told
    assert document("advise", "--from", str(trace), *RATES)["verdict"]["word"] == "enable"


def test_traffic_that_does_not_pay_is_told_so(tmp_path: Path) -> None:
    said = run("advise", "--from", str(written(tmp_path, strangers())), *RATES)
    assert "Do not enable this." in said
    assert "The rule:" in said


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    trace = written(tmp_path, strangers())
    nowhere = tmp_path / "none" / "a.html"
    result = runner.invoke(app, ["advise", "--from", str(trace), "--html", str(nowhere)])
    assert result.exit_code == guard.USAGE
    assert str(nowhere) in result.stderr
    with trace.open("a") as file:
        file.write('{"timestamp": 1}\n')
    result = runner.invoke(app, ["advise", "--from", str(trace)])
    assert result.exit_code == guard.USAGE
    assert "line 21" in result.stderr
    assert "Traceback" not in result.output
