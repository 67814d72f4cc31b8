"""Loads in rounds: equal shares in an order that turns, and what is made of them.

The servers cannot run here: a pair that only answers stands in for them.
"""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.gpu import rounds, slowdown, talks
from tests.gpu.asking import pool_tokens
from tests.gpu.families import Family, Ferry, Native, Prompts, Turn
from tests.gpu.figures import Record
from tests.gpu.rounds import Rounds, Share, accounts, figures
from tests.gpu.talks import Arm, Talk


class Answering(Family):
    """Answers at once, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("answering", 1, 2, {"nothing": True})
        self.asked: list[tuple[list[int], int, dict[str, Any] | None]] = []
        self.forgotten = 0
        self._lock = threading.Lock()

    def unhinted(self) -> dict[str, Any]:
        return {"hint": None}

    def turn(self, ids: list[int], tokens: int, last: dict[str, Any] | None = None) -> Turn:
        with self._lock:
            self.asked.append((ids, tokens, last))
        return turn(1.0, answer=[7] * tokens, hint={"hint": len(ids)})

    def forget_p(self) -> None:
        self.forgotten += 1


def turn(
    ttft_s: float,
    *,
    answer: list[int] | None = None,
    hint: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
) -> Turn:
    return Turn(p_s=0.0, ttft_s=ttft_s, answer=answer or [], hint=hint, report=report or {})


def report(pulled: int, local: int, miss: str) -> dict[str, Any]:
    computed = 100 - pulled - local
    return {
        "prompt_tokens": 100,
        "pulled": pulled,
        "local": local,
        "computed": computed,
        "miss": miss,
    }


def lengths(asked: list[tuple[list[int], int, dict[str, Any] | None]]) -> list[tuple[int, int]]:
    return sorted((len(ids), tokens) for ids, tokens, _ in asked)


def test_every_arm_serves_the_same_shapes_with_texts_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {"local_compute": 0}

    def count(_port: int) -> dict[str, int]:
        counted["local_compute"] += 5
        return dict(counted)

    monkeypatch.setattr(rounds, "prompt_tokens_by_source", count)
    families = [Answering(), Answering()]
    arms = [Arm("kvferry", families[0], reuse=True), Arm("off", families[1], reuse=False)]
    load = talks.mixed(12, 2, cpu=True)
    record = Record(tmp_path / "out.json")
    Rounds(arms, Prompts(500), record, at_once=3).measure(load)

    assert lengths(families[0].asked) == lengths(families[1].asked)
    texts = [{tuple(ids) for ids, _, _ in family.asked} for family in families]
    assert texts[0].isdisjoint(texts[1])
    assert {last is None for _, _, last in families[1].asked} == {True}
    assert {last is None for _, _, last in families[0].asked} == {False}
    assert sum(last == {"hint": None} for _, _, last in families[0].asked) == sum(
        map(len, load.shares)
    )
    found = json.loads(record.path.read_text())["mixed"]
    assert found["rounds"] == 2
    for arm in ("kvferry", "off"):
        assert found["arms"][arm]["requests"] == len(families[0].asked) >= 12
        assert found["arms"][arm]["p_tokens_by_source"] == {"local_compute": 10}
    assert set(found["over_off"]) == {"kvferry"}


def test_the_order_of_the_arms_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "prompt_tokens_by_source", lambda _port: {})
    began: list[str] = []

    def order(pool: ThreadPoolExecutor, served: Any, arm: Arm, draw: random.Random) -> list[Any]:
        began.append(arm.name)
        return talks.back_to_back(pool, served, arm, draw)

    family = Answering()
    arms = [Arm(name, family, reuse=name != "off") for name in ("kvferry", "off", "nixl")]
    load = talks.Load("mixed", talks.mixed(16, 4, cpu=True).shares, order)
    Rounds(arms, Prompts(500), Record(tmp_path / "out.json"), at_once=2).measure(load)
    assert "".join(name[0] for name in began) == "kon" + "onk" + "nko" + "kon"


def test_a_first_pull_is_warmed_up_for_arms_that_reuse(tmp_path: Path) -> None:
    families = [Answering(), Answering()]
    arms = [Arm("kvferry", families[0], reuse=True), Arm("off", families[1], reuse=False)]
    Rounds(arms, Prompts(500), Record(tmp_path / "out.json"), at_once=1).warm_up()
    assert [family.forgotten for family in families] == [1, 0]
    assert [last for _, _, last in families[0].asked] == [{"hint": None}, {"hint": 256}]


@pytest.mark.parametrize(("order", "waves"), [(talks.in_waves, True), (talks.back_to_back, False)])
def test_a_turn_comes_when_all_others_have_had_theirs(order: talks.Order, waves: bool) -> None:
    family = Answering()
    shape = [(10, 8), (100, 8), (1000, 8)]
    served = [Talk(shape, Prompts(500)) for _ in range(6)]
    with ThreadPoolExecutor(1) as pool:
        for job in order(pool, served, Arm("off", family, reuse=False), random.Random(1)):
            job.result()
    seen = [len(ids) for ids, _, _ in family.asked]
    assert sorted(set(seen)) == [10, 118, 1126]
    assert (seen == sorted(seen)) == waves
    assert [len(talk.turns) for talk in served] == [3] * 6


def test_waves_are_shuffled_and_a_turn_waits_for_the_one_before_it() -> None:
    family = Answering()
    served = [Talk([(number + 10, 8), (1, 8)], Prompts(500)) for number in range(9)]
    with ThreadPoolExecutor(9) as pool:
        jobs = talks.in_waves(pool, served, Arm("off", family, reuse=False), random.Random(3))
        for job in jobs:
            job.result()
    assert lengths(family.asked) == sorted(
        (length, 8) for number in range(9) for length in (number + 10, number + 19)
    )
    alone = Answering()
    with ThreadPoolExecutor(1) as pool:
        again = [Talk(talk.shape, Prompts(500)) for talk in served]
        arm = Arm("off", alone, reuse=False)
        for job in talks.in_waves(pool, again, arm, random.Random(3)):
            job.result()
    first = [len(ids) - 10 for ids, _, _ in alone.asked[:9]]
    second = [len(ids) - 19 for ids, _, _ in alone.asked[9:]]
    assert sorted(first) == sorted(second) == list(range(9))
    assert first != second


def test_arms_are_compared_round_by_round() -> None:
    def share(first_s: float, later_s: float, took_s: float) -> Share:
        return Share([turn(first_s)], [turn(later_s)] * 3, took_s, {"local_compute": 2})

    # The host is ten times as slow in the second round, and the ratios do not see it.
    found = figures(
        {
            "kvferry": [share(2, 1, 1), share(20, 10, 10), share(2, 1.2, 1)],
            "off": [share(2, 2, 2), share(20, 20, 20), share(2, 2, 2)],
        }
    )
    assert found["rounds"] == 3
    over = found["over_off"]["kvferry"]
    assert over["later_turns_median_ms"]["median"] == 0.5
    assert over["later_turns_median_ms"]["range"] == [0.5, 0.6]
    assert over["requests_per_s"] == {"median": 2.0, "interval_95": [2.0, 2.0], "range": [2, 2]}
    arm = found["arms"]["kvferry"]
    assert arm["later_turns_ms"] == {"p50": 1200.0, "p95": 10_000.0, "p99": 10_000.0}
    assert arm["all_turns_ms"]["p99"] == 20_000.0
    assert (arm["requests"], arm["requests_per_s"]) == (12, 1.0)
    assert arm["p_tokens_by_source"] == {"local_compute": 6}
    assert found["by_round"]["off"]["requests_per_s"] == [2.0, 0.2, 2.0]
    assert "over_off" not in figures({"kvferry": [share(1, 1, 1)]})


def test_reports_are_added_up() -> None:
    turns = [
        turn(1, report=report(80, 10, "")),
        turn(1, report=report(0, 0, "diverged@1536")),
        turn(1, report=report(0, 0, "diverged@64")),
        turn(1, report=report(0, 96, "local")),
    ]
    assert accounts(turns) == {
        "requests": 4,
        "pulled": 1,
        "tokens": {"prompt": 400, "local": 106, "pulled": 80, "computed": 214},
        "misses": {"diverged": 2, "local": 1},
    }
    assert accounts([turn(1)]) == {}


def test_shares_hold_what_was_asked_for() -> None:
    mixed = talks.mixed(300, 6, cpu=False)
    assert len(mixed.shares) == 6
    assert 300 <= sum(len(shape) for share in mixed.shares for shape in share) < 304
    assert all(talks.mixed(24, 6, cpu=True).shares)
    pressed = talks.pressed(360, 5, cpu=False)
    assert [[len(shape) for shape in share] for share in pressed.shares] == [[3] * 24] * 5


def test_a_pool_that_is_not_pressed_or_too_small_is_found_out() -> None:
    load = talks.pressed(360, 5, cpu=False)
    begun, ended = load.in_play_tokens(), load.longest_share_tokens()
    assert 24 * 4_000 < begun < ended < 24 * (12_000 + 2 * 750 + 3 * 48)
    assert slowdown.fits(load, {"p": begun, "d": ended}) == ""
    assert slowdown.fits(load, {"p": 0, "d": 0}) == ""
    assert "--p-pool" in slowdown.fits(load, {"p": begun + 1, "d": ended})
    assert "--pool" in slowdown.fits(load, {"p": begun, "d": ended - 1})


def test_a_pool_is_read_from_the_metrics() -> None:
    labels = 'mamba_block_size="7",block_size="16",num_gpu_blocks="100",num_gpu_blocks_override="9"'
    text = f"# TYPE x gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
    assert pool_tokens(text) == 1600
    assert pool_tokens(text.replace('"100"', '"None"')) == 0
    assert pool_tokens("") == 0


def test_a_conversation_that_begins_may_have_kv_from_elsewhere() -> None:
    assert Ferry().unhinted() == {"kvferry": {"hint": None}}
    native = Native(offload=False).unhinted()
    assert native["do_remote_decode"] is True
    assert native["remote_block_ids"] is None


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--parts", "mixed,pressed", "--p-pool", "1G"], "by itself"),
        (["--parts", "pressed"], "--p-pool"),
        (["--p-pool", "1G"], "--p-pool"),
        (["--rounds", "0"], "--rounds"),
        (["--at-once", "0"], "--at-once"),
        (["--requests", "20"], "at least 4 a round, 24 here"),
        (["--parts", "pressed", "--p-pool", "1G", "--requests", "200"], "39 a round, 234 here"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        slowdown.parse(["--out", "here", *argv])
    assert named in capsys.readouterr().err


def test_pools_have_defaults_of_their_own_in_a_rehearsal() -> None:
    assert slowdown.parse(["--out", "here"]).pool == "36G"
    assert slowdown.parse(["--out", "here", "--cpu", "--arms", "off"]).pool == "64M"
    assert slowdown.parse(["--out", "here", "--pool", "60G"]).pool == "60G"
