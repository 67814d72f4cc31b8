"""``kvferry bench outbox``: what leaving a step's events costs the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from kvferry.bench.results import JsonFile, percentile, publish
from kvferry.core.events import BLOCKS, Event, Produced, RequestEnded
from kvferry.files import check_writable
from kvferry.ids import HASH_BYTES, SHORT_BYTES, sample_stride
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox

SIZES = (64, 128, 256, 512)
BLOCK_SIZE = 16
REQUESTS = 8
STRIDE = sample_stride(BLOCK_SIZE)
TAIL = bytes(HASH_BYTES)
SCHEDULE_ROUNDS = 50
"""Rounds over a step's requests, some 100 us: what vLLM's ``schedule`` takes for a small step."""
Step = tuple[float, dict[str, int], None]
"""When it was scheduled, tokens by request, and what was preempted: as our connector leaves it."""


def command(
    steps: Annotated[
        int, typer.Option("--steps", min=10, help="Steps of each size: 64, 128, 256, 512 blocks.")
    ] = 2_000,
    pause_ms: Annotated[
        float,
        typer.Option("--pause-ms", min=0.0, help="What the engine does between two steps."),
    ] = 2.0,
    json_file: JsonFile = None,
) -> None:
    """Measure what leaving a step's events in the outbox costs the engine's thread.

    A step of 64 to 512 blocks over 8 requests is handed over as our vLLM connector does it, while
    the node agent's thread turns the steps into events. The figures are of the hand-over alone:
    what stands under `nothing` is the measuring itself, and is part of every other row but
    `step_less_measuring`, from which its median is taken off.

    Each hand-over comes straight out of the pause, on a processor that was idle: the caches are
    cold, and so is the measuring. An engine's thread comes from scheduling the step instead, which
    is some 100 us of Python. Rows that begin with `scheduled` are measured behind as much of it.

    Examples:

      kvferry bench outbox

      kvferry bench outbox --steps 10000 --json outbox.json
    """
    check_writable(json_file)
    publish("microseconds of the engine's thread", _measure(steps, pause_ms / 1000), json_file)


def _measure(steps: int, pause_s: float) -> dict[str, Any]:
    outbox = Outbox(translate=_translate)
    # Without a url nothing is published, but the agent's thread looks and translates as ever.
    agent = NodeAgent(NodeSettings(nats_url="", node="bench"), outbox)
    agent.start()
    rows: dict[str, list[float]] = {}
    try:
        rows["nothing"] = _costs(lambda: None, steps, pause_s)
        for size in SIZES:
            rows[f"step_of_{size}"] = _costs(_step(outbox, size), steps, pause_s)
        rows["scheduled_nothing"] = _costs(lambda: None, steps, pause_s, before=_schedule)
        rows["scheduled_step"] = _costs(_step(outbox, SIZES[-1]), steps, pause_s, before=_schedule)
        ended = RequestEnded(request="request", prompt_tokens=2_048, computed_tokens=16)

        def reserved() -> None:
            outbox.reserve()
            outbox.settle(ended, "cause")

        rows["fact"] = _costs(lambda: outbox.facts(ended, "cause"), steps, pause_s)
        rows["reserve_and_settle"] = _costs(reserved, steps, pause_s)
    finally:
        agent.stop()
    together = sorted(cost for size in SIZES for cost in rows[f"step_of_{size}"])
    figures: dict[str, Any] = {
        "step_us_p50": round(percentile(together, 0.50), 3),
        "step_us_p99": round(percentile(together, 0.99), 3),
        "steps": steps * len(SIZES),
        "pause_ms": pause_s * 1000,
    }
    for name, costs in rows.items():
        costs.sort()
        figures[f"{name}_us_p50"] = round(percentile(costs, 0.50), 3)
        figures[f"{name}_us_p99"] = round(percentile(costs, 0.99), 3)
    for share in ("p50", "p99"):
        own = figures[f"step_us_{share}"] - figures["nothing_us_p50"]
        figures[f"step_less_measuring_us_{share}"] = round(own, 3)
    return figures


def _step(outbox: Outbox, size: int) -> Callable[[], None]:
    """Hand over one step of ``size`` blocks."""
    scheduled = {f"request-{n}": size * BLOCK_SIZE // REQUESTS for n in range(REQUESTS)}

    def act() -> None:
        step: Step = (time.monotonic(), scheduled, None)
        outbox.hand_over(step)

    return act


def _translate(item: object) -> Iterable[tuple[str, Event, str]]:
    """One run for each request of a step, on the agent's thread."""
    assert isinstance(item, tuple)
    for request, tokens in item[1].items():
        blocks = tokens // BLOCK_SIZE
        hashes = bytes(blocks // STRIDE * SHORT_BYTES)
        yield BLOCKS, Produced(request=request, start=0, count=blocks, tail=TAIL, hashes=hashes), ""


def _schedule() -> None:
    """About as much Python as an engine runs to schedule a step."""
    left = dict.fromkeys((f"request-{n}" for n in range(REQUESTS)), 0)
    for budget in range(SCHEDULE_ROUNDS):
        for name, had in left.items():
            left[name] = max(had, min(budget, BLOCK_SIZE))


def _costs(
    act: Callable[[], None],
    steps: int,
    pause_s: float,
    *,
    before: Callable[[], None] = lambda: None,
) -> list[float]:
    """Microseconds of each of so many steps of an engine that pauses between them.

    ``before`` runs between pause and step, and is not counted.
    """
    costs = []
    for _ in range(steps):
        before()
        begun = time.perf_counter_ns()
        act()
        costs.append((time.perf_counter_ns() - begun) / 1000)
        time.sleep(pause_s)
    return costs
