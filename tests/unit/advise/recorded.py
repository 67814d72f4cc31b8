"""Small files of requests whose figures can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SESSIONS = 10
REST = 100
"""Tokens behind a prompt's last full block of 512."""


def trace_line(at_s: float, blocks: list[int]) -> dict[str, Any]:
    """A prompt of these full blocks and a rest that nobody shares."""
    return {
        "timestamp": at_s * 1_000,
        "input_length": 512 * len(blocks) + REST,
        "output_length": 5,
        "hash_ids": [*blocks, -blocks[-1] - 1],
    }


def conversations(apart_s: float) -> list[dict[str, Any]]:
    """Ten sessions of two turns, 200 s from turn to turn: 2 full blocks, then these and 2 more."""
    firsts = [trace_line(at * apart_s, [at * 10, at * 10 + 1]) for at in range(SESSIONS)]
    seconds = [
        trace_line(200 + at * apart_s, [at * 10 + block for block in range(4)])
        for at in range(SESSIONS)
    ]
    return firsts + seconds


def strangers() -> list[dict[str, Any]]:
    """Twenty prompts with nothing in common."""
    return [trace_line(at, [at * 10, at * 10 + 1]) for at in range(2 * SESSIONS)]


def written(folder: Path, lines: list[dict[str, Any]], name: str = "requests.jsonl") -> Path:
    """The lines as a file."""
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
