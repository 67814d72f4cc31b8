"""The load as a scenario sees it: a process of its own, and what became of its plans."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
from tests.chaos.load_process import ANSWERED, Asked, Order, Report
from tests.chaos.processes import BOUND_S

from kvferry.node.agent.settings import NodeSettings

ROOT = Path(__file__).parents[2]


class Load:
    """Nodes in a process of their own, one of which asks for plans. A context manager."""

    def __init__(
        self,
        url: str,
        log: Path,
        *,
        plans_per_s: float = 100.0,
        plan_deadline_ms: float = 10_000.0,
        hedge_ms: float = 5.0,
    ) -> None:
        self.log = log
        order = Order(
            url=url,
            plans_per_s=plans_per_s,
            plan_deadline_ms=plan_deadline_ms,
            hedge_ms=hedge_ms,
        )
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.load_process",
                    msgspec.json.encode(order).decode(),
                ],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Load:
        try:
            assert self._line() == "ready", self.log.read_text()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self) -> Report:
        """What ended since the last report."""
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Report)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(BOUND_S)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"the load ended: {self.log.read_text()[-3000:]}"
        return line


def usual_load(url: str, folder: Path, plans_per_s: float) -> Load:
    """Plans with the bounds that a node has if nobody sets them."""
    usual = NodeSettings(nats_url="nats://unused", node="unused")
    return Load(
        url,
        folder / "load.log",
        plans_per_s=plans_per_s,
        plan_deadline_ms=usual.plan_deadline_ms,
        hedge_ms=usual.hedge_ms,
    )


def outcomes(asked: list[Asked]) -> Counter[str]:
    """How many plans ended in which way."""
    return Counter(one.outcome for one in asked)


def failed(asked: list[Asked]) -> list[Asked]:
    """Plans that did not find what is held although it is held all the time."""
    return [one for one in asked if one.outcome != ANSWERED]
