"""The command with real processes: both modes, what it refuses, and what it leaves behind."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.bench_link.commands import SMALL, BenchLink, alive, children, eventually, run
from typer.testing import CliRunner

from kvferry.cli import bench
from kvferry.cli.main import app

Start = Callable[..., BenchLink]
FIELDS = {
    "backend",
    "block_bytes",
    "layers",
    "pattern",
    "direction",
    "gb_per_s",
    "share_of_raw",
    "raw",
    "raw_gb_per_s",
    "p50_ms",
    "p99_ms",
    "reads",
    "bytes_per_read",
    "checked_blocks",
}
runner = CliRunner()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[BenchLink] = []

    def begin(*arguments: str) -> BenchLink:
        made.append(BenchLink(tmp_path, *arguments))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def check_rows(path: Path, backends: list[str], layers: int = 1) -> None:
    document = json.loads(path.read_text())
    rows = document["rows"]
    assert document["failures"] == []
    assert document["ended_early"] == ""
    assert set(document["ends"]) == {"a", "b"}
    combinations = itertools.product(
        backends, (65536,), ("scattered", "contiguous"), ("a->b", "b->a")
    )
    keys = ("backend", "block_bytes", "pattern", "direction")
    assert sorted(tuple(row[key] for key in keys) for row in rows) == sorted(combinations)
    for row in rows:
        assert set(row) == FIELDS
        assert row["gb_per_s"] > 0
        assert row["share_of_raw"] == pytest.approx(row["gb_per_s"] / row["raw_gb_per_s"], rel=0.1)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["reads"] >= 3
        assert row["layers"] == layers
        assert row["bytes_per_read"] == 8 * 65536
        assert row["checked_blocks"] == 8 // layers
        assert row["raw"] == ("memcpy" if row["backend"] == "peer_host" else "stream")


def test_two_processes_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    given = ("--layers", "2", "--backends", "tcp,peer_host", "--json", str(path))
    code, out, err = run(tmp_path, *SMALL, *given)
    assert code == 0, err
    check_rows(path, ["tcp", "peer_host"], layers=2)
    for word in ("tcp", "peer_host", "2 x 64 KiB", "scattered", "a->b", "raw memcpy", "raw stream"):
        assert word in out
    assert "Traceback" not in err


def test_two_hosts_with_one_key_and_none_that_has_another(tmp_path: Path, start: Start) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    for number, file in enumerate((key, other)):
        file.write_text(f"{number:064x}")
        file.chmod(0o600)
    serving = start("--serve", "--listen", "127.0.0.1:0", "--key", f"file:{key}")
    address = serving.line().split("--peer ")[1].strip()
    mine = (*SMALL, "--backends", "tcp", "--peer", address, "--key")
    code, _, err = run(tmp_path, *mine, f"file:{other}")
    assert code == 2
    assert "another key" in err
    path = tmp_path / "link.json"
    code, out, err = run(tmp_path, *mine, f"file:{key}", "--json", "-")
    assert code == 0, err
    path.write_text(out)  # Nothing but the document stands on stdout.
    check_rows(path, ["tcp"])
    code, _, err = serving.end(signal.SIGINT)
    assert code == 130
    assert err.count("measured by 127.0.0.1") == 1
    assert "Traceback" not in err


def test_ctrl_c_ends_both_processes_and_keeps_what_was_measured(
    tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "link.json"
    slow = (*SMALL[:4], "--seconds", "60", "--backends", "tcp", "--json", str(path))
    running = start(*slow)
    assert eventually(lambda: len(children(running.process.pid)) == 2)
    ends = children(running.process.pid)
    code, _, err = running.end(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in err
    assert eventually(lambda: not any(alive(pid) for pid in ends))
    assert json.loads(path.read_text())["ended_early"] == "interrupted"


def test_a_killed_command_leaves_no_process(start: Start) -> None:
    running = start(*SMALL[:4], "--seconds", "60", "--backends", "tcp")
    assert eventually(lambda: len(children(running.process.pid)) == 2)
    ends = children(running.process.pid)
    running.end(signal.SIGKILL)
    assert eventually(lambda: not any(alive(pid) for pid in ends))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--memory", "tape"], "--memory tape is not one of host, cuda"),
        (["--backends", "pigeon"], "no backend is called pigeon"),
        (["--block-bytes", "4k"], "--block-bytes '4k' is no size"),
        (["--block-bytes", "12"], "--block-bytes 12 is not a multiple of 8"),
        (["--pool-bytes", "1MiB", "--block-bytes", "1MiB"], "holds 1 blocks of 1 MiB"),
        (
            ["--pool-bytes", "8MiB", "--block-bytes", "1MiB", "--layers", "4"],
            "holds 2 blocks of 4 layers of 1 MiB",
        ),
        (["--layers", "0"], "--layers 0 is not 1 to 1024"),
        (["--seconds", "0"], "--seconds 0"),
        (["--option", "connections=4"], "BACKEND.OPTION=VALUE"),
        (["--option", "pigeon.x=4"], "no backend is called pigeon"),
        (["--serve"], "--serve needs --listen"),
        (["--serve", "--listen", "127.0.0.1:1", "--peer", "127.0.0.1:2"], "the two ends"),
        (["--listen", "127.0.0.1:1"], "--listen belongs to --serve"),
        (["--peer", "127.0.0.1:1", "--peer-device", "1"], "--peer-device"),
        (["--peer", "nowhere"], "'nowhere' is not ip:port"),
        (["--json", "/nonexistent/x.json"], "--json /nonexistent/x.json cannot be written"),
        (["--key", "hex:1", "--peer", "127.0.0.1:1"], "64 hex digits"),
    ],
)
def test_wrong_usage_is_code_2_and_names_the_option(arguments: list[str], text: str) -> None:
    result = runner.invoke(app, ["bench", "link", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_nobody_at_the_peers_address_is_said_with_the_cure() -> None:
    key = f"hex:{1:064x}"
    result = runner.invoke(app, ["bench", "link", "--peer", "127.0.0.1:9", "--key", key])
    assert result.exit_code == 1
    assert "kvferry bench link --serve" in result.stderr


def test_the_group_lists_its_commands_and_survives_one_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = runner.invoke(app, ["bench", "--help"])
    assert listed.exit_code == 0
    assert "link" in listed.stdout
    broken = bench.importlib.metadata.EntryPoint("link", "kvferry_no_such_module:command", "g")
    monkeypatch.setattr(bench.importlib.metadata, "entry_points", lambda **_: [broken])
    assert "kvferry_no_such_module" in runner.invoke(app, ["bench", "--help"]).stdout
    result = runner.invoke(app, ["bench", "link"])
    assert result.exit_code == 2
    assert "kvferry_no_such_module" in result.stderr
