"""`kvferry whatif` as an operator calls it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.cli.processes import Up
from tests.unit.cli.running import document, run, runner
from tests.unit.whatif.ledgers import FIRST, Ledger

from kvferry.cli import guard
from kvferry.cli.main import app
from kvferry.replay.exporting import export, whole


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    """An exported ledger in which p0 overlooked what d0 had, as far as its plan is told."""

    async def write() -> Path:
        ledger = Ledger()
        await ledger.join("p0", blocks=500)
        await ledger.join("d0", blocks=500)
        position = await ledger.turn("d0", "talk", FIRST)
        await ledger.turn("p0", "talk", FIRST, position=position)
        return await exported(ledger, tmp_path / "wrong.kvf")

    return asyncio.run(write())


async def exported(ledger: Ledger, path: Path) -> Path:
    await export(ledger.log, path, await whole(ledger.log))
    return path


def complaint(*arguments: str, code: int) -> str:
    result = runner.invoke(app, ["whatif", *arguments])
    assert result.exit_code == code, result.output
    return result.stderr


def test_a_live_ledger_and_its_export_give_the_same_forecast(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_NATS", up.url)
    file = tmp_path / "a.kvf"
    run("export", str(file))
    options = ("--host-tier", "1GB", "--ttl", "60")
    live = document("whatif", *options)
    assert (live["requests"], live["enough"]) == (2, True)
    assert live["policy"]["host_tier_bytes"] == 10**9
    assert live["moved_bytes"]["was"] == 524_288
    assert live["events_per_s"] > 0
    monkeypatch.setenv("KVFERRY_NATS", "nats://127.0.0.1:9")
    from_file = document("whatif", *options, "--file", str(file))
    for what in ("computed_tokens", "recomputed_tokens", "moved_bytes", "ttft_p99_ms", "kinds"):
        assert from_file[what] == live[what], what
    assert "a.kvf" in from_file["of"]
    shown = run("whatif", *options, "--file", str(file))
    for part in ("decisions come out the same", "tokens computed", "TTFT p99", "Assumed"):
        assert part in shown


def test_too_few_reproduced_decisions_refuse_the_comparison(ledger_file: Path) -> None:
    args = ("--file", str(ledger_file), "--pool", "2x")
    refused = document("whatif", *args, code=guard.TROUBLE)
    assert (refused["enough"], refused["computed_tokens"]) == (False, None)
    assert "--force does it all the same" in complaint(*args, code=guard.TROUBLE)
    shown = run("whatif", *args, code=guard.TROUBLE)
    assert "TOO FEW: at least 99% are needed" in shown
    assert "nothing_held, again a source" in shown
    assert "tokens computed" not in shown
    forced = document("whatif", *args, "--force", code=guard.TROUBLE)
    assert forced["computed_tokens"] is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--link-rate", "d00:p0=3"), "did you mean d0"),
        (("--extra-decode", "1"), "role=decode"),
        (("--from", "99"), "its facts are messages 1 to"),
        (("--to", "0"), "its facts are messages 1 to"),
        (("--ttl", "soon"), "use seconds"),
        (("--free-watermark", "95%"), "--free-watermark '95%' is no share of a pool"),
        (("--retain-max", "-1"), "--retain-max '-1': use seconds"),
        (("--host-tier", "much"), "--host-tier 'much'"),
    ],
)
def test_bad_input_is_told_with_its_cure(
    ledger_file: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in complaint("--file", str(ledger_file), *options, code=guard.USAGE)


def test_an_empty_ledger_is_told(tmp_path: Path) -> None:
    file = asyncio.run(exported(Ledger(), tmp_path / "empty.kvf"))
    assert "empty.kvf has no facts" in complaint("--file", str(file), code=guard.USAGE)
