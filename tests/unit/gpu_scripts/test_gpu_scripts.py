"""What of the GPU measurements needs no GPU: their arithmetic, options, result files, metadata."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.gpu import five_arms, slowdown, source_killed
from tests.gpu.entry_points import ROOT, write_metadata
from tests.gpu.figures import Record, percentile, spread
from tests.gpu.shape_model import shape_model


def test_spread_and_percentiles() -> None:
    assert spread([3.0, 1.0, 2.04]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}
    hundred = [float(value) for value in range(100, 0, -1)]
    assert [percentile(hundred, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert percentile([7.0], 0.99) == 7.0


def test_a_result_file_is_whole_after_every_step(tmp_path: Path) -> None:
    record = Record(tmp_path / "new" / "figures.json")
    first = json.loads(record.path.read_text())
    assert {"date", "command", "hardware", "versions"} <= set(first)
    record.add_row("2048", {"a": 1})
    record.put("took_s", 3)
    record.add_row("8192", {"a": 2})
    found = json.loads(record.path.read_text())
    assert found["rows"] == {"2048": {"a": 1}, "8192": {"a": 2}}
    assert found["took_s"] == 3
    assert [path.name for path in record.path.parent.iterdir()] == ["figures.json"]


def test_arms_of_several_runs_are_compared() -> None:
    def row(**medians: float) -> dict[str, object]:
        figures = {arm: {"median": value, "max": 2 * value} for arm, value in medians.items()}
        return {"ttft_ms": figures}

    earlier = [{"rows": {"2048": row(recompute=100.0, p_warm=20.0), "8192": row(nixl=1.0)}}]
    found = five_arms.with_earlier("2048", row(nixl=50.0), earlier)
    assert found["recompute_over"] == {"recompute": 1.0, "p_warm": 5.0, "nixl": 2.0}
    assert found["over_floor"] == {"recompute": 5.0, "p_warm": 1.0, "nixl": 2.5}
    assert found["max_over_median"] == {"nixl": 2.0}
    assert "recompute_over" not in five_arms.with_earlier("2048", row(nixl=50.0), [])


def test_an_arm_that_did_something_else_is_found_out() -> None:
    computed = {"local_compute": 9, "local_cache_hit": 0, "external_kv_transfer": 0}
    hit = {**computed, "local_cache_hit": 4}
    loaded = {**computed, "external_kv_transfer": 4}
    right = {
        "recompute": computed,
        "p_warm": hit,
        "kvferry": loaded,
        "nixl": loaded,
        "offload": loaded,
    }
    assert set(right) == set(five_arms.ARMS)
    for arm, sources in right.items():
        for seen in (computed, hit, loaded):
            assert five_arms.did_as_named(arm, seen) == (seen == sources), (arm, seen)


@pytest.mark.parametrize(
    ("script", "argv", "named"),
    [
        (five_arms, ["--arms", "kvferry,nixel"], "nixel"),
        (five_arms, ["--cpu"], "--cpu"),
        (five_arms, [], "--out"),
        (slowdown, ["--parts", "step"], "step"),
        (slowdown, ["--cpu"], "--cpu"),
        (source_killed, ["--pol", "1G", "--nothing"], "--nothing"),
    ],
)
def test_a_wrong_option_is_named(
    script: object, argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if named == "--out" else ["--out", "here"]
    with pytest.raises(SystemExit):
        script.parse([*out, *argv])  # type: ignore[attr-defined]
    assert named in capsys.readouterr().err


def test_a_checkout_on_the_path_finds_its_backends(tmp_path: Path) -> None:
    # A site of its own, for this distribution may be installed in the real one.
    site = tmp_path / "site"
    site.mkdir()
    (site / "msgspec").symlink_to(Path(msgspec.__file__).parent)

    def names(*more: Path) -> list[str]:
        paths = [site, ROOT / "coordinator", ROOT / "backends", *more]
        script = "from kvferry_backends import registry; print(*registry.names())"
        ran = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={"PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.split()

    assert names() == []
    assert "peer" in names(write_metadata(tmp_path / "metadata"))


def test_a_shape_is_a_model_without_weights(tmp_path: Path) -> None:
    folder = shape_model(tmp_path / "m", "llama1b")
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 16
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("t7 t128255").ids == [7, 128255]
    assert not list(folder.glob("*.safetensors"))
