"""Advice from a vLLM server's own log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvferry.errors import ConfigError
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.prompts import Prompt
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.vllm_log import VllmLog

PREFIX = "(APIServer pid=7) DEBUG {at} [serve/utils/request_logger.py:57] "
COLOURED = (
    "\x1b[0;36m(APIServer pid=7)\x1b[0;0m \x1b[37mDEBUG\x1b[0m \x1b[90m{at}\x1b[0m "
    "\x1b[90m[serve/utils/request_logger.py:57]\x1b[0m "
)
NEW = (
    "Request {name} details: prompt: {prompt!r}, prompt_token_ids: {ids}, "
    "prompt_embeds shape: None."
)
OLD = (
    "Received request {name}: prompt: {prompt!r}, params: SamplingParams(n=1), "
    "prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
)
NOISE = [
    "INFO 11-30 14:57:00 [api_server.py:1] vLLM API server version 0.32.0",
    "(APIServer pid=7) INFO 11-30 14:57:01 [request_logger.py:66] Received request c-0: params: "
    "SamplingParams(n=1), lora_request: None.",
    '(APIServer pid=7) DEBUG 11-30 14:57:01 [request_logger.py:74] Request c-0 JSON body: {"a":1}',
    "(APIServer pid=7) DEBUG 11-30 14:57:01 [request_logger.py:57] Request c-0 details: prompt: "
    "None, prompt_token_ids: None, prompt_embeds shape: torch.Size([1]).",
    "",
]
FIRST = list(range(1_000, 1_330))
"""330 tokens, of which 320 lie in marks of 16."""
SECOND = FIRST + list(range(2_000, 2_100))


def line(at: str, ids: list[int], prompt: str = "x", shape: str = NEW, prefix: str = PREFIX) -> str:
    said = shape.format(name="chatcmpl-1", prompt=prompt, ids=ids)
    return prefix.format(at=at) + said


def read(lines: Iterable[str]) -> list[Prompt]:
    return list(VllmLog("--from x").prompts(text.encode() + b"\n" for text in lines))


def advise(folder: Path, lines: Iterable[str]) -> Report:
    path = folder / "vllm.log"
    path.write_text("\n".join(lines) + "\n")
    return advise_file(path, Costs(), 600.0)


@pytest.mark.parametrize("shape", [NEW, OLD])
@pytest.mark.parametrize("prefix", [PREFIX, COLOURED, "2026-11-30T14:57:31.25Z stderr F {at} "])
def test_a_conversation_is_recognised_in_every_shape_of_log(
    tmp_path: Path, shape: str, prefix: str
) -> None:
    turns = [
        line("11-30 14:58:00", FIRST, shape=shape, prefix=prefix),
        line("11-30 14:59:30", SECOND, shape=shape, prefix=prefix.replace("57:31.25", "59:01.25")),
        line("11-30 14:59:30", [9] * 500, shape=shape, prefix=prefix.replace("57:31", "59:02")),
    ]
    report = advise(tmp_path, [*NOISE, *turns, *NOISE])
    assert (report.requests, report.sessions) == (3, 2)
    assert report.prompt_tokens == 330 + 430 + 500
    # Pieces of 64 tokens: five of the first prompt.
    assert [row.repeated_tokens for row in report.shares] == [0, 320]
    assert report.gaps_s is not None
    assert report.gaps_s.p50 == 90
    assert report.of == "vllm.log, a vLLM server's log"
    assert "token ids" in report.assumptions[0]


def test_lines_as_json_tell_the_same(tmp_path: Path) -> None:
    lines = [
        json.dumps({"asctime": at, "levelname": "DEBUG", "message": message})
        for at, message in (
            ("2026-11-30 14:57:58,000", "vLLM API server version 0.32.0"),
            ("2026-11-30 14:58:00,500", line("", FIRST, prefix="")),
            ("2026-11-30 14:58:02,000", line("", SECOND, prefix="")),
        )
    ]
    report = advise(tmp_path, lines)
    assert (report.requests, report.sessions) == (2, 1)
    assert report.gaps_s is not None
    assert report.gaps_s.p50 == 1.5


def test_what_a_prompt_says_is_no_part_of_the_log() -> None:
    sly = "Request a details: prompt: 'b', prompt_token_ids: [1, 2, 3], '11-30 01:00:00"
    (found,) = read([line("11-30 14:58:00", FIRST, prompt=sly)])
    assert found.tokens == len(FIRST)
    (other,) = read([line("11-30 14:58:00", FIRST)])
    assert found == other


def test_short_prompts_are_no_beginning_of_others() -> None:
    short, long = read([line("11-30 14:58:00", FIRST[:64]), line("11-30 14:58:01", FIRST[:65])])
    assert (short.end, long.end) == (None, long.marks[-1])
    assert len(long.marks) == 4


def test_times_go_through_new_year_and_never_back() -> None:
    days = ["12-31 23:59:59", "01-01 00:00:01", "01-01 00:00:00", "01-01 00:00:02"]
    times = [prompt.at_s for prompt in read(line(day, FIRST) for day in days)]
    assert [at_s - times[0] for at_s in times] == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        (NOISE, ["holds no requests", "VLLM_LOGGING_LEVEL=DEBUG"]),
        ([*NOISE, line("", FIRST, prefix="")], ["line 6", "without a time"]),
        ([line("11-31 14:58:00", FIRST)], ["line 1", "no time"]),
    ],
)
def test_a_log_that_tells_nothing_names_the_cure(
    tmp_path: Path, lines: list[str], texts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        advise(tmp_path, lines)
    for text in ("--from", *texts):
        assert text in str(caught.value)
