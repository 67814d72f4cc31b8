"""Advice from recorded requests: the figures are those of pencil and paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.advise.recorded import conversations, strangers, written

from kvferry.errors import ConfigError
from kvferry.replay.advise.chunks import Chunks
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.report import DO_NOT_ENABLE, ENABLE, TOO_LITTLE, Report
from kvferry.replay.advise.spread import Values

COSTS = Costs(prefill_tokens_per_s=512, kv_bytes_per_token=1, link_gb_per_s=1e-6)
"""A block takes a second to compute and about half a second to move: 1,000 bytes a second."""


def advise(
    folder: Path,
    lines: list[dict[str, Any]],
    costs: Costs = COSTS,
    retention_s: float = 600.0,
) -> Report:
    return advise_file(written(folder, lines), costs, retention_s)


def test_conversations_that_pay(tmp_path: Path) -> None:
    report = advise(tmp_path, conversations(apart_s=15))
    assert report.kind == "trace"
    assert (report.requests, report.sessions, report.span_s) == (20, 10, 335)
    assert report.prompt_tokens == 10 * (1_124 + 2_148)
    assert report.repeated_tokens == 10 * 1_024
    assert [(row.turn, row.requests, row.repeated_tokens) for row in report.shares] == [
        ("1", 10, 0),
        ("2", 10, 10_240),
    ]
    assert report.gaps_s is not None
    assert (report.gaps_s.count, report.gaps_s.p50, report.gaps_s.p99) == (10, 200, 200)
    # Moving 1,024 bytes takes 1.024 s and 3 ms; computing them 2 s.
    assert report.prefill_s == pytest.approx(10 * (1_124 + 2_148) / 512)
    assert report.saved_s == pytest.approx(10 * (2 - 1.027))
    assert report.bytes_per_turn == 10 * 1_024 / 20
    (link,) = report.links
    assert (link.moves, link.bytes, link.rate_bytes_s) == (10, 10_240, 1_000)
    assert link.peak_bytes_s == 1_024 / 10
    by = {(row.prompt, row.how): row.seconds for row in report.ttft}
    assert by["1k-4k", "without"].count == 20
    assert by["1k-4k", "without"].p99 == pytest.approx(2_148 / 512)
    assert by["1k-4k", "with reuse"].p99 == pytest.approx(2_148 / 512 - 0.973)
    assert not report.ttft_measured
    assert report.verdict.word == ENABLE
    assert "15.2%" in " ".join(one.text for one in report.verdict.reasons)
    assert "512 tokens computed" in " ".join(report.assumptions)


def test_keeping_kv_for_less_than_the_gap_finds_nothing(tmp_path: Path) -> None:
    report = advise(tmp_path, conversations(apart_s=15), retention_s=199)
    kept = {row.keep_s: row for row in report.keeping}
    assert (kept[60].repeated_tokens, kept[60].gaps_share) == (0, 0.0)
    assert (kept[199].repeated_tokens, kept[199].gaps_share) == (0, 0.0)
    assert (kept[300].repeated_tokens, kept[300].gaps_share) == (10_240, 1.0)
    assert report.saved_s == 0
    assert report.verdict.word == DO_NOT_ENABLE


def test_prompts_that_share_nothing_do_not_pay(tmp_path: Path) -> None:
    report = advise(tmp_path, strangers())
    assert report.repeated_tokens == 0
    assert report.gaps_s is None
    assert report.links == ()
    assert report.verdict.word == DO_NOT_ENABLE
    assert report.verdict.reasons[0].text.startswith("reuse would spare 0.0% of prefill time")


def test_a_link_slower_than_computing_does_not_pay(tmp_path: Path) -> None:
    slow = Costs(prefill_tokens_per_s=512, kv_bytes_per_token=1, link_gb_per_s=5e-7)
    report = advise(tmp_path, conversations(apart_s=15), slow)
    assert report.repeated_tokens == 10_240, "it repeats all the same"
    assert (report.saved_s, report.links) == (0, ())
    assert report.verdict.word == DO_NOT_ENABLE


def test_a_link_that_cannot_carry_the_peak_is_a_reason_against(tmp_path: Path) -> None:
    report = advise(tmp_path, conversations(apart_s=0.1))
    assert report.links[0].peak_bytes_s == 1_024
    assert report.saved_s > 0
    assert report.verdict.word == DO_NOT_ENABLE
    assert "carries no more than" in report.verdict.reasons[0].text


def test_a_handful_of_requests_decides_nothing(tmp_path: Path) -> None:
    report = advise(tmp_path, conversations(apart_s=15)[:19])
    assert report.verdict.word == TOO_LITTLE
    assert "19 turns" in report.verdict.reasons[0].text


def test_what_is_kept_counts_with_the_time_that_it_is_kept() -> None:
    chunks = Chunks((3.0, 10.0))
    assert chunks.use(0.0, [1, 2]) == ([0, 0], 0)
    assert chunks.use(5.0, [1, 2, 3]) == ([0, 2], 2)
    # Chunks 1 and 2 wait for 5 s, then all three for 1 s.
    assert chunks.held(6.0) == [3 + 3 + 1 + 1 + 1, 5 + 5 + 1 + 1 + 1]


def test_memory_is_bounded_and_says_so() -> None:
    chunks = Chunks((10.0,), chunks_max=2)
    chunks.use(0.0, [1, 2, 3])
    assert chunks.forgotten == 1
    assert chunks.use(1.0, [1, 2]) == ([0], 0)
    values = Values(values_max=100)
    for number in range(10_000):
        values.add(number)
    assert values.count == 10_000
    assert values.at(0.5) == pytest.approx(5_000, rel=0.05)


def asks(at: object, *messages: tuple[str, object], **more: object) -> dict[str, Any]:
    told = [{"role": role, "content": content} for role, content in messages]
    return {"timestamp": at, "messages": told, **more}


FIRST = ("user", "a" * 506)  # 512 characters with its role
ANSWER = ("assistant", "b" * 245)  # 256
SECOND = ("user", "c" * 250)  # 256


def test_a_log_of_messages_counts_the_answers_too(tmp_path: Path) -> None:
    report = advise(tmp_path, [asks(100, FIRST), asks(130, FIRST, ANSWER, SECOND)])
    assert (report.requests, report.sessions) == (2, 1)
    assert report.prompt_tokens == 512 // 4 + 1_024 // 4
    assert report.repeated_tokens == (512 + 256) // 4
    assert report.gaps_s is not None
    assert report.gaps_s.p50 == 30
    assert "2 requests were estimated" in report.assumptions[0]


def test_a_log_with_usage_batches_and_other_times(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 256}
    messages = asks(None, FIRST)["messages"]
    lines = [
        {"created_at": "2026-03-01T10:00:00Z", "body": {"messages": messages}, "usage": usage},
        {
            "created_at": "2026-03-01T10:00:45+00:00",
            "body": {"messages": messages, "user": "x"},
        },
    ]
    report = advise(tmp_path, lines)
    assert report.span_s == 45
    assert report.prompt_tokens == 256 + 128
    assert report.sessions == 2, "the same text of another user"
    assert "1 requests were estimated" in report.assumptions[0]


def test_a_user_has_several_conversations(tmp_path: Path) -> None:
    other = ("user", "d" * 506)
    lines = [
        asks(0, FIRST, user="u"),
        asks(5, other, user="u"),
        asks(9, FIRST, ANSWER, SECOND, user="v"),
        asks(10, FIRST, ANSWER, SECOND, user="u"),
    ]
    report = advise(tmp_path, lines)
    assert report.sessions == 3
    assert [(row.turn, row.requests) for row in report.shares] == [("1", 3), ("2", 1)]
    assert report.gaps_s is not None
    assert report.gaps_s.p50 == 10


def test_sessions_that_the_log_names_and_plain_prompts(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1_780_000_000_000, "prompt": "x" * 1_100, "session": "s"},
        {"timestamp": 1_780_000_002_500, "prompt": "y" * 1_100, "session": "s"},
        {"timestamp": 1_780_000_003_000, "prompt": "x" * 1_100 + "z" * 100},
    ]
    report = advise(tmp_path, lines)
    assert report.sessions == 2
    assert report.gaps_s is not None
    assert report.gaps_s.p50 == 2.5
    # 4 pieces of 256 characters, or 64 tokens, of the first.
    assert report.repeated_tokens == 4 * 64


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (["{"], ["line 1", "one request a line"]),
        (["", "[1]"], ["line 2", "a JSON object"]),
        (['{"timestamp": 1, "messages": []}'], ["line 1", "neither messages nor prompt"]),
        (['{"prompt": "x"}'], ["line 1", "no time"]),
        (['{"prompt": "x", "timestamp": "soon"}'], ["line 1", "timestamp is no time"]),
        (['{"prompt": "x", "timestamp": 5}', '{"prompt": "x", "timestamp": 4}'],
         ["line 2", "sort the lines by time"]),
        (['{"timestamp": 1, "messages": ["x"]}'], ["line 1", "object with role"]),
        (['{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1]}'],
         ["line 1", "1 hash_ids for 600 tokens"]),
        ([""], ["is empty"]),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_cure(
    tmp_path: Path, lines: list[str], texts: list[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError) as caught:
        advise_file(path, COSTS, 600.0)
    for text in ("--from", *texts):
        assert text in str(caught.value)


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    line = json.dumps({"timestamp": 1, "prompt": "x"})
    path = tmp_path / "long.jsonl"
    path.write_text((line + "\n") * 400)
    told: list[tuple[int, int]] = []
    advise_file(path, COSTS, 600.0, lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert told == [(size // 2, size), (size, size)]
