"""The router's own metrics, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter

from kvferry_connectors.router.pools import Pool
from kvferry_connectors.router.report import Report
from kvferry_connectors.router.tilert.pool import TilertPool


class Counters:
    """Counts since start. Used from the event loop only."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """Failed attempts by engine; a turn may succeed in spite of some."""
        self.tilert: Counter[str] = Counter()
        """Turns that asked for TileRT, by what became of them."""

    def turn(self, outcome: str, report: Report | None, miss: str) -> None:
        """Counts an ended turn with P's report, or why there is none."""
        self.turns[outcome] += 1
        if report is not None:
            self.tokens["local"] += report.local
            self.tokens["pulled"] += report.pulled
            self.tokens["computed"] += report.computed
            miss = report.miss
        if miss and miss != "local":
            # diverged@1536 counts as diverged: a label must not grow with the traffic.
            self.misses[miss.partition("@")[0]] += 1

    def text(self, pools: list[Pool], remembered: int, tilert: TilertPool | None = None) -> str:
        """Everything, one sample a line."""
        lines: list[str] = []
        _add(lines, "turns_total", "counter", "Turns by how they ended", "outcome", self.turns)
        _add(lines, "prompt_tokens_total", "counter", "As P reported", "source", self.tokens)
        _add(lines, "misses_total", "counter", "Turns without full reuse", "why", self.misses)
        _add(lines, "engine_failures_total", "counter", "Attempts", "engine", self.failures)
        engines = [engine for pool in pools for engine in pool.engines]
        if tilert is not None:
            engines += tilert.engines
            about = "Turns that asked for TileRT, by what became of them"
            _add(lines, "tilert_turns_total", "counter", about, "end", self.tilert)
            waiting = {"": tilert.queue.waiting}
            _add(lines, "tilert_waiting", "gauge", "Requests in the queue", "", waiting)
        up = {engine.name: int(engine.up) for engine in engines}
        busy = {engine.name: engine.in_flight for engine in engines}
        _add(lines, "engine_up", "gauge", "1 if it may be chosen", "engine", up)
        _add(lines, "engine_in_flight", "gauge", "Requests at it", "engine", busy)
        _add(lines, "remembered_turns", "gauge", "Turns known for affinity", "", {"": remembered})
        return "\n".join(lines) + "\n"


def _add(
    lines: list[str], name: str, kind: str, about: str, label: str, samples: dict[str, int]
) -> None:
    full = f"kvferry_router_{name}"
    lines += [f"# HELP {full} {about}.", f"# TYPE {full} {kind}"]
    for value, number in samples.items():
        lines.append(f'{full}{{{label}="{value}"}} {number}' if label else f"{full} {number}")
