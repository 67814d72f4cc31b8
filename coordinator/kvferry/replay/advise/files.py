"""A file of recorded requests: which format it has, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvferry.errors import ConfigError
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.mooncake import mooncake_prompts
from kvferry.replay.advise.openai import ASSUMED, OpenAILog
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.requests import RequestStudy
from kvferry.replay.advise.vllm_log import ASSUMED as ASSUMED_OF_VLLM
from kvferry.replay.advise.vllm_log import VllmLog, is_vllm_line

LINE_BYTES_MAX = 16 * 1024 * 1024
REPORT_EVERY = 200
MOONCAKE, OPENAI, VLLM = "mooncake", "openai", "vllm"
FORMATS = "a Mooncake trace, a log of OpenAI requests, or the log of a vLLM server"


def advise_file(
    path: Path,
    costs: Costs,
    retention_s: float,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Advice from a file of requests, read once from front to back.

    Args:
        path: a trace in Mooncake's format, a log of OpenAI requests or a vLLM server's own log;
            the first line tells which.
        costs: rates of the model.
        retention_s: how long KV is taken to be kept after its last use.
        progress: told now and then as (bytes read, bytes to read).

    Raises:
        ConfigError: the file or a line of it cannot be used; names the line and the cure.
    """
    name = f"--from {path}"
    study = RequestStudy(costs, retention_s)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            kind = _kind(file, name)
            lines = _lines(file, name, size, progress)
            if kind == MOONCAKE:
                for prompt in mooncake_prompts(lines, name):
                    study.add(prompt)
                return study.report(f"{path.name}, a trace in Mooncake's format")
            if kind == VLLM:
                for prompt in VllmLog(name).prompts(lines):
                    study.add(prompt)
                return study.report(f"{path.name}, a vLLM server's log", (ASSUMED_OF_VLLM,))
            log = OpenAILog(name)
            for prompt in log.prompts(lines):
                study.add(prompt)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    notes = (f"{ASSUMED}; {log.estimated:,} requests were estimated",)
    return study.report(f"{path.name}, a log of OpenAI requests", notes)


def _kind(file: BinaryIO, name: str) -> str:
    """What the first line is; the file is at its beginning again afterwards."""
    first, number = b"", 0
    while not first.strip():
        first, number = file.readline(LINE_BYTES_MAX), number + 1
        if not first:
            raise ConfigError(f"{name} is empty: give {FORMATS}")
    file.seek(0)
    if not first.lstrip().startswith((b"{", b"[")):
        return VLLM
    try:
        line = msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{name} line {number}: {error}; give {FORMATS}, with one request a line"
        ) from error
    if is_vllm_line(line):
        return VLLM
    return MOONCAKE if isinstance(line, dict) and "hash_ids" in line else OPENAI


def _lines(
    file: BinaryIO, name: str, size: int, progress: Callable[[int, int], None] | None
) -> Iterator[bytes]:
    done = 0
    for number, raw in enumerate(_bounded(file), start=1):
        done += len(raw)
        if len(raw) >= LINE_BYTES_MAX and not raw.endswith(b"\n"):
            raise ConfigError(
                f"{name} line {number}: longer than {LINE_BYTES_MAX:,} bytes; is it one request "
                "a line?"
            )
        if progress is not None and number % REPORT_EVERY == 0:
            progress(done, size)
        yield raw


def _bounded(file: BinaryIO) -> Iterable[bytes]:
    return iter(lambda: file.readline(LINE_BYTES_MAX), b"")
