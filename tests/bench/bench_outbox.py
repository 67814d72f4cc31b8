"""What a hand-over costs the engine's thread. Prints one JSON document.

A step with n events is handed over as one item, as connectors do, while the agent translates the
steps on its own thread. Beside it: the same events left one by one, which is what no connector
should do, and facts.

    python tests/bench/bench_outbox.py [--steps 2000] [--pause-ms 2]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable

from kvferry.core.events import BLOCKS, Event, Produced, RequestEnded
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox

SIZES = (64, 128, 256, 512)
TAIL = bytes(32)


def translate(item: object) -> Iterable[tuple[str, Event, str]]:
    """One event for every (request, start) of a step."""
    assert isinstance(item, list)
    for request, start in item:
        yield BLOCKS, Produced(request=request, start=start, count=1, tail=TAIL), request


def measure(act: Callable[[], None], steps: int, pause_s: float) -> dict[str, float]:
    """Cost of ``act`` in microseconds over so many steps of an engine that pauses between."""
    costs = []
    for _ in range(steps):
        begun = time.perf_counter_ns()
        act()
        costs.append((time.perf_counter_ns() - begun) / 1000)
        time.sleep(pause_s)
    costs.sort()
    return {
        "mean_us": round(sum(costs) / len(costs), 3),
        "p50_us": round(costs[len(costs) // 2], 3),
        "p99_us": round(costs[int(len(costs) * 0.99)], 3),
        "max_us": round(costs[-1], 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="steps for each size")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="engine time between steps")
    options = parser.parse_args()
    pause_s = options.pause_ms / 1000
    outbox = Outbox(translate=translate)
    # Without a url nothing is published, but the agent's thread polls and translates as ever.
    agent = NodeAgent(NodeSettings(nats_url="", node="bench"), outbox)
    agent.start()
    result: dict[str, object] = {"python": platform.python_version(), "steps": options.steps}
    bare: deque[object] = deque(maxlen=64)
    try:
        # What the clock and cold caches cost by themselves.
        result["nothing"] = measure(lambda: None, options.steps, pause_s)
        result["bare_append"] = measure(lambda: bare.append(bare), options.steps, pause_s)
        for size in SIZES:
            step = [(f"request-{n % 8}", n) for n in range(size)]
            handed = measure(lambda: outbox.hand_over(step), options.steps, pause_s)  # noqa: B023
            result[f"hand_over_{size}"] = handed
        step = [("request", n) for n in range(64)]

        def one_by_one() -> None:
            for _, event, cause in translate(step):
                outbox.blocks(event, cause)

        result["blocks_64_one_by_one"] = measure(one_by_one, options.steps // 4, pause_s)
        fact = RequestEnded(request="request", prompt_tokens=2048, computed_tokens=16)
        result["facts_1"] = measure(lambda: outbox.facts(fact, "c"), options.steps, pause_s)

        def reserved() -> None:
            outbox.reserve()
            outbox.settle(fact, "c")

        result["reserve_and_settle"] = measure(reserved, options.steps, pause_s)
    finally:
        agent.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
