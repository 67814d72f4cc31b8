"""Ledgers of simulated fleets, and what ``whatif`` makes of them.

A process of its own, for the simulator replaces the clocks and locks of whole modules::

    python -m tests.unit.whatif.simulated again SEED... [name=value...]
    python -m tests.unit.whatif.simulated backtest SMALL LARGE [name=value...]

``again`` prints one JSON object a seed: the share of decisions that are reproduced, and the same
for a forged ledger, in which every plan names another source than it had. ``backtest`` runs the
same conversations on small and on large pools, forecasts the one from the ledger of the other, and
prints what was computed and what was forecast, both ways.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import msgspec

TALKS, TURNS, FIRST, SAID = 6, 5, 256, 80
"""Conversations, turns of each, tokens of a first prompt, and what a turn adds."""


class Run(NamedTuple):
    """What a simulation left."""

    violations: int
    history: list[Any]


def main() -> None:
    what, *rest = sys.argv[1:]
    numbers = [int(one) for one in rest if "=" not in one]
    knobs = dict(one.split("=", 1) for one in rest if "=" in one)
    if what == "again":
        for seed, run in zip(numbers, simulated(numbers, [knobs] * len(numbers)), strict=True):
            print(json.dumps({"seed": seed, "violations": run.violations, **again(run.history)}))
        return
    both = [{**knobs, "blocks": str(blocks)} for blocks in numbers]
    small, large = simulated([1, 1], both, scripted=True)
    factor = numbers[1] / numbers[0]
    told = {
        "larger": forecast(small.history, factor, large.history),
        "smaller": forecast(large.history, 1 / factor, small.history),
    }
    print(json.dumps({"violations": small.violations + large.violations, **told}))


def simulated(
    seeds: list[int], knobs: list[dict[str, str]], *, scripted: bool = False
) -> list[Run]:
    """What each simulation stored; ``scripted`` with conversations that do not depend on it."""
    from tests.sim.kernel.install import hush, load_without_engine, simulated

    hush()
    load_without_engine()
    from tests.sim import run
    from tests.sim.world import world as worlds
    from tests.sim.world.knobs import draw

    shipped: Any = run
    made: list[Any] = []
    shipped.World = type(
        "Kept",
        (worlds.World,),
        {"__init__": lambda self, *a: (made.append(self), worlds.World.__init__(self, *a))[1]},
    )
    if scripted:
        clients: Any = worlds
        clients.Client = script()
    found = []
    with simulated():
        for seed, given in zip(seeds, knobs, strict=True):
            outcome = run.simulate(seed, draw(seed, "ledger", given))
            found.append(Run(len(outcome.violations), list(made[-1].ledger.history)))
    return found


def script() -> type:
    """A client that holds the same conversations whatever the nodes do: prefill on ``n0``, decode
    on ``n1``, one turn of each conversation after the other."""
    from tests.sim.world.clients import Client

    class Scripted(Client):
        def _run(self) -> None:
            said = {talk: [talk * 1_000 + i for i in range(FIRST)] for talk in range(TALKS)}
            hints: dict[int, Any] = {}
            for turn in range(1, TURNS + 1):
                for talk in range(TALKS):
                    own = {"session": f"talk-{talk}", "turn": turn, "id": f"{talk}.{turn}"}
                    first = {**own, "hint": hints.get(talk), "handover": True}
                    _, hint = self._wait("n0", self._send("n0", said[talk], 1, "", first))
                    call = self._send("n1", said[talk], 5, "", {**own, "hint": hint})
                    answer, hints[talk] = self._wait("n1", call)
                    more = [10_000 * turn + 100 * talk + i for i in range(SAID)]
                    said[talk] = (answer or said[talk]) + more
                    self._world.kernel.sleep(0.3)
            self.done = True

    return Scripted


def again(history: list[Any]) -> dict[str, Any]:
    """The ledger and a forged one, decided again."""
    from kvferry.replay.whatif.policy import Policy

    policy = Policy()
    true, false = (ask(one, policy) for one in (history, [forged(stored) for stored in history]))
    return {
        "decisions": true.decisions,
        "reproduced": true.reproduced,
        "kinds": {kind.kind: kind.decided for kind in true.kinds},
        "why": {kind.kind: kind.why for kind in true.kinds},
        "forged": false.reproduced,
        "rests": rests(history),
    }


def rests(history: list[Any]) -> dict[str, int]:
    """Of hinted prefixes of which the node had a part: how many rests were pulled, or too dear."""
    from kvferry.core.events import Requested
    from kvferry.ledger.codec import decode

    found = {"pulled": 0, "too_dear": 0}
    for stored in history:
        for entry in decode(stored.data).entries:
            event = entry.event
            if isinstance(event, Requested) and event.weighed_from and not event.tried:
                found["pulled"] += bool(event.transfer)
                found["too_dear"] += event.miss == "too_dear"
    return found


def forecast(history: list[Any], factor: float, other: list[Any]) -> dict[str, Any]:
    """What pools of another size are said to compute, and what they computed."""
    from kvferry.replay.whatif.policy import Policy

    told, real = ask(history, Policy(pool=factor)), ask(other, Policy(pool=1.0))
    return {
        "reproduced": told.reproduced,
        "requests": [told.requests, real.requests],
        "was": told.computed_tokens.was,
        "forecast": told.computed_tokens.forecast,
        "low": told.computed_tokens.low,
        "high": told.computed_tokens.high,
        "real": real.computed_tokens.was,
    }


def ask(history: list[Any], policy: Any) -> Any:
    from kvferry.replay.whatif.run import whatif

    log: Any = _Log(history)
    return asyncio.run(whatif(log, policy, "a simulated ledger", force=True))


def forged(stored: Any) -> Any:
    """The same message, in which every plan names somebody else."""
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
    return msgspec.structs.replace(
        stored, data=encode(msgspec.structs.replace(batch, entries=entries))
    )


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
