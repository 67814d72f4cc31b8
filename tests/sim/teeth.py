"""Every seeded bug is caught by its checker, and the seed that caught it is clean without it."""

from __future__ import annotations

import gc
from typing import Any

from tests.sim.kernel.install import hush, load_without_engine, simulated


def bug_names() -> list[str]:
    """All of them; loads the shipped modules."""
    load_without_engine()
    from tests.sim.bugs.all import BUGS

    return list(BUGS)


def bite(name: str) -> dict[str, Any]:
    """Look for the first seed at which the bug's checker speaks up.

    Returns:
        ``bug``, ``check``, ``seed`` (0 if none within the bug's bound), ``said``: what the checker
        said, and ``control``: what any checker says of the same seed without the bug.
    """
    hush()
    load_without_engine()
    from tests.sim.bugs.all import BUGS
    from tests.sim.bugs.bug import applied
    from tests.sim.run import simulate
    from tests.sim.world.knobs import draw

    bug = BUGS[name]
    found: dict[str, Any] = {"bug": name, "check": bug.check, "seed": 0, "said": "", "control": []}
    for seed in range(1, bug.seeds + 1):
        knobs = draw(seed, bug.profile, bug.knobs)
        with applied(bug), simulated():
            said = [v for v in simulate(seed, knobs).violations if v.check == bug.check]
        gc.collect()
        if said:
            found["seed"], found["said"] = seed, said[0].what
            with simulated():
                found["control"] = [tuple(v) for v in simulate(seed, knobs).violations]
            break
    return found
