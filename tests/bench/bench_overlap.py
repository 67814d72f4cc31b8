"""What it brings that a decode engine takes a prompt over while a prefill engine computes it.

Prints one JSON object. For each link and each ``handover_start`` the ratio overlapped ÷ one after
the other of the time to the first token, as the median over pairs with a 95 % bootstrap interval;
how long the decode engine took after the prefill engine had ended; and for how many
block-seconds it held blocks that were not filled yet.

Two engines on this machine, driven directly (a router adds its hops to both arms). ``--links``
paces what the source sends: a tiny model has little KV for its compute, and so a slow link here
stands for a common one under a large model. The JSON tells how long a link takes for one prompt's
KV as a share of the prompt's prefill, which is what to compare. 0 is the loopback as it is.

Run: ``python -m tests.bench.bench_overlap [--pairs 10] [--tokens 8000] [--links 0 100 25]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.conftest import KEY, joined
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane
from tests.e2e.relay import ANSWERS, Relay

from kvferry_connectors.demo.model import TINY, ensure_model

CHUNK = 512
BLOCK = 32
TOKEN_BYTES = 1024
RESAMPLES = 2_000
AHEAD_S = 0.004
"""The paced link may be so far ahead of its time."""
STARTS = (0.0, 0.5, 1.0)
"""1.0 begins with the last part of the prompt."""


class PacedRelay(Relay):
    """Carries what the source sends at ``mb_per_s``; 0 does not hold it back."""

    mb_per_s = 0.0

    def __init__(self) -> None:
        self._pace = threading.Lock()
        self._next_s = 0.0
        super().__init__()

    def _allowed(self, flow: Any, data: bytes) -> tuple[bytes, bytes]:
        if flow.direction == ANSWERS and self.mb_per_s:
            with self._pace:
                now = time.monotonic()
                self._next_s = max(self._next_s, now) + len(data) / (self.mb_per_s * 1e6)
                wait_s = self._next_s - now
            if wait_s > AHEAD_S:  # Waking up is slow where all cores are busy.
                time.sleep(wait_s)
        return super()._allowed(flow, data)


class Took(NamedTuple):
    """Milliseconds of one prompt in one arm, and block-seconds."""

    first_token: float
    prefill: float
    held_block_s: float


class Stage:
    """The two engines and prompts that never repeat."""

    def __init__(self, p0: EngineProcess, d0: EngineProcess, tokens: int) -> None:
        self._p0, self._d0, self._tokens = p0, d0, tokens
        self._draw, self._numbers = random.Random(1), itertools.count()
        self._said = p0.run("said", self._prompt(), tokens=1).hint
        d0.ask("watch_loads")

    def in_turn(self) -> Took:
        text, name = self._prompt(), f"turn-{next(self._numbers)}"
        began = time.perf_counter()
        first = self._p0.run(f"{name}-p", text, tokens=1)
        prefilled = time.perf_counter()
        answer = self._d0.run(f"{name}-d", text, tokens=1, kvferry={"hint": first.hint})
        return self._took(began, prefilled, answer.report)

    def at_once(self) -> Took:
        text, name = self._prompt(), f"once-{next(self._numbers)}"
        began = time.perf_counter()
        self._p0.add(f"{name}-p", text, tokens=1, kvferry={"publish": name})
        params = {"follow": name, "hint": self._said}
        self._d0.add(f"{name}-d", text, tokens=1, kvferry=params)
        self._p0.answer(f"{name}-p")
        prefilled = time.perf_counter()
        answer = self._d0.answer(f"{name}-d")
        return self._took(began, prefilled, answer.report)

    def start(self, share: float) -> None:
        self._d0.ask("handover_start", share)

    def _took(self, began: float, prefilled: float, report: dict[str, Any]) -> Took:
        ended = time.perf_counter()
        assert report["pulled"] == self._tokens // BLOCK * BLOCK, report
        held = self._d0.ask("held_block_s")
        return Took(1000 * (ended - began), 1000 * (prefilled - began), held)

    def _prompt(self) -> list[int]:
        return [self._draw.randrange(10, 500) for _ in range(self._tokens)]


def compare(stage: Stage, pairs: int) -> dict[str, Any]:
    """``pairs`` prompts in each arm, who goes first in turns."""
    turn, once = [], []
    for number in range(pairs):
        arms = [(turn, stage.in_turn), (once, stage.at_once)]
        for found, run in arms if number % 2 else reversed(arms):
            found.append(run())
    ratios = [b.first_token / a.first_token for a, b in zip(turn, once, strict=True)]
    return {
        "ttft_ratio": round(statistics.median(ratios), 4),
        "ttft_ratio_95": interval(ratios),
        **{f"{name}_in_turn": middle(turn, name) for name in Took._fields},
        **{f"{name}_at_once": middle(once, name) for name in Took._fields},
        "after_prefill_in_turn": after(turn),
        "after_prefill_at_once": after(once),
    }


def middle(found: list[Took], name: str) -> float:
    return round(statistics.median(getattr(one, name) for one in found), 2)


def after(found: list[Took]) -> float:
    """Milliseconds from the prefill's end to the first token."""
    return round(statistics.median(one.first_token - one.prefill for one in found), 2)


def interval(ratios: list[float]) -> list[float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return [round(medians[int(RESAMPLES * q)], 4) for q in (0.025, 0.975)]


def run(folder: Path, pairs: int, tokens: int, links: list[float]) -> dict[str, Any]:
    """Start both engines, measure, stop them."""
    model = ensure_model(folder / "model", TINY)
    plane, relay = Plane(folder), PacedRelay()
    engines: list[EngineProcess] = []
    sizes = {"max_model_len": 2 * tokens, "kv_cache_memory_bytes": 6 * tokens * TOKEN_BYTES}
    rows = []
    try:
        plane.start_coordinator()
        common = {"nats_url": plane.url, "key": KEY, "pin_timeout_ms": 5_000}
        source = {**common, **relay.connector_options()}
        engines.append(
            EngineProcess(model, "p0", connector=source, max_num_batched_tokens=CHUNK, **sizes)
        )
        engines.append(EngineProcess(model, "d0", connector=common, **sizes))
        p0, d0 = engines
        joined(p0, d0)
        stage = Stage(p0, d0, tokens)
        for share, mb_per_s in itertools.product(STARTS, links):
            relay.mb_per_s = mb_per_s
            stage.start(share)
            for warm in (stage.in_turn, stage.at_once):
                warm()
            row = compare(stage, pairs)
            link_ms = tokens * TOKEN_BYTES / (mb_per_s * 1e3) if mb_per_s else 0.0
            share_of_prefill = round(link_ms / row["prefill_in_turn"], 3)
            rows.append(
                {
                    "handover_start": share,
                    "link_mb_per_s": mb_per_s,
                    "link_share_of_prefill": share_of_prefill,
                    **row,
                }
            )
    finally:
        for engine in engines:
            engine.stop()
        relay.close()
        plane.stop()
    return {
        "bench": "overlap",
        "pairs": pairs,
        "tokens": tokens,
        "blocks": tokens // BLOCK,
        "chunk": CHUNK,
        "cpus": os.cpu_count(),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="prompts in each arm, >= 5")
    parser.add_argument("--tokens", type=int, default=8_000, help="of a prompt, <= 8000")
    parser.add_argument(
        "--links", type=float, nargs="+", default=[0.0, 100.0, 25.0], metavar="MB_PER_S"
    )
    given = parser.parse_args()
    if given.pairs < 5:
        parser.error("an interval over fewer than 5 pairs says nothing")
    if not 2 * CHUNK <= given.tokens <= TINY.positions // 2:
        parser.error(f"--tokens must lie between {2 * CHUNK} and {TINY.positions // 2}")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), given.pairs, given.tokens, given.links)))


if __name__ == "__main__":
    main()
