"""``python -m tests.unit.whatif.simulated SEED... [name=value...]``: simulate, then decide again.

A process of its own, for the simulator replaces the clocks and locks of whole modules. Prints one
JSON object a seed: the share of decisions that are reproduced, how many there were, and the same
for a forged ledger, in which every plan names another source than it had.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

import msgspec


def main() -> None:
    from tests.sim.kernel.install import hush, load_without_engine, simulated

    hush()
    load_without_engine()
    from tests.sim import run
    from tests.sim.world.knobs import draw
    from tests.sim.world.world import World

    class Kept(World):
        """The world of the last run."""

        last: World | None = None

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            Kept.last = self

    shipped: Any = run
    shipped.World = Kept
    seeds = [int(one) for one in sys.argv[1:] if "=" not in one]
    knobs = dict(one.split("=", 1) for one in sys.argv[1:] if "=" in one)
    histories = []
    with simulated():
        for seed in seeds:
            outcome = run.simulate(seed, draw(seed, "ledger", knobs))
            assert Kept.last is not None
            assert Kept.last.ledger is not None
            histories.append((seed, outcome.violations, list(Kept.last.ledger.history)))
    for seed, violations, history in histories:
        print(json.dumps({"seed": seed, "violations": len(violations), **_again(history)}))


def _again(history: list[Any]) -> dict[str, Any]:
    """Both ledgers, decided again."""
    true, false = (_report(one) for one in (history, [_forged(stored) for stored in history]))
    return {
        "decisions": true.decisions,
        "reproduced": true.reproduced,
        "kinds": {kind.kind: kind.decided for kind in true.kinds},
        "why": {kind.kind: kind.why for kind in true.kinds},
        "forged": false.reproduced,
    }


def _report(history: list[Any]) -> Any:
    from kvferry.replay.whatif.policy import Policy
    from kvferry.replay.whatif.run import whatif

    log: Any = _Log(history)
    return asyncio.run(whatif(log, Policy(), "a simulated ledger"))


def _forged(stored: Any) -> Any:
    from kvferry.core.events import Requested
    from kvferry.ledger.codec import decode, encode

    batch = decode(stored.data)
    entries = tuple(
        msgspec.structs.replace(
            entry,
            event=msgspec.structs.replace(
                entry.event, basis="plan", options=("nobody",), source="nobody"
            ),
        )
        if isinstance(entry.event, Requested) and entry.event.basis in ("plan", "told")
        else entry
        for entry in batch.entries
    )
    forged = msgspec.structs.replace(batch, entries=entries)
    return msgspec.structs.replace(stored, data=encode(forged))


class _Log:
    """What was ever stored, as a log that can be read."""

    def __init__(self, history: list[Any]) -> None:
        self._history = history

    async def bounds(self, stream: str) -> Any:
        from kvferry.ports.log import StreamBounds

        return StreamBounds(self._history[0].seq, self._history[-1].seq)

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Any, None]:
        for stored in self._history:
            if stored.seq >= start:
                yield stored


if __name__ == "__main__":
    main()
