"""``python -m tests.sim``: run seeds, replay one, or show that a seeded bug is caught."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import msgspec

PROFILES = ("peers", "ledger", "slots")
SEEDS_DEFAULT = 20
COLLECT_EVERY = 10
"""Runs between two collections of garbage, which a run itself must not do."""


class Job(NamedTuple):
    """Some seeds for one process."""

    profile: str
    seeds: tuple[int, ...]
    knobs: dict[str, str]
    bug: str = ""
    trace: bool = False
    ledgers: str = ""


def run(job: Job) -> list[dict[str, Any]]:
    """Simulate the job's seeds, in this process."""
    from tests.sim.kernel.install import hush, load_without_engine, simulated

    hush()
    load_without_engine()
    from tests.sim.bugs.all import BUGS
    from tests.sim.bugs.bug import applied
    from tests.sim.keeping import Histories
    from tests.sim.run import simulate
    from tests.sim.world.knobs import draw

    outcomes = []
    histories = Histories(job.ledgers)
    with applied(BUGS[job.bug] if job.bug else None), simulated():
        for number, seed in enumerate(job.seeds, start=1):
            knobs = draw(seed, job.profile, job.knobs)
            outcome = simulate(seed, knobs, trace=job.trace, look=histories.of(seed))
            outcomes.append(msgspec.to_builtins(outcome))
            if number % COLLECT_EVERY == 0:
                gc.collect()
    histories.write(job.profile)
    return outcomes


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 when an invariant broke, 2 for a wrong option."""
    options = _parser().parse_args(arguments)
    try:
        knobs = dict(one.split("=", 1) for one in options.knob)
    except ValueError:
        print("--knob takes name=value", file=sys.stderr)
        return 2
    if options.teeth:
        return _teeth(options)
    bug = _bug(options.bug)
    if options.bug and bug is None:
        print(f"there is no bug {options.bug!r}; see tests/sim/bugs", file=sys.stderr)
        return 2
    profiles = [options.profile] if options.profile else list(PROFILES)
    if bug is not None:
        profiles, knobs = [bug.profile], {**bug.knobs, **knobs}
    one = options.seed is not None
    first, count = (options.seed, 1) if one else (options.start, options.seeds)
    seeds = range(first, first + count)
    began_s = time.monotonic()
    try:
        outcomes = _outcomes(profiles, seeds, knobs, options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    took_s = time.monotonic() - began_s
    if options.json:
        with open(options.json, "w") as file:
            json.dump(outcomes, file)
    failed = [one for one in outcomes if one["violations"]]
    for outcome in failed[: options.show]:
        _show(outcome, options.bug)
    happened: Counter[str] = Counter()
    for outcome in outcomes:
        happened.update(outcome["counts"])
    print(
        f"{len(outcomes)} runs, {len(failed)} failed; {len(outcomes) / took_s:.1f} seeds/s over "
        f"{options.jobs} processes; {json.dumps(dict(sorted(happened.items())))}"
    )
    if one:
        print(*(f"digest {outcome['digest']}" for outcome in outcomes), sep="\n")
    return 1 if failed else 0


def _outcomes(
    profiles: list[str], seeds: range, knobs: dict[str, str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    parts = max(1, min(options.jobs * 4, len(seeds)))
    jobs = [
        Job(profile, tuple(seeds[part::parts]), knobs, options.bug, options.trace, options.ledgers)
        for profile in profiles
        for part in range(parts)
    ]
    if options.jobs == 1 or len(jobs) == 1:
        found = [run(job) for job in jobs]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            found = list(pool.map(run, jobs))
    return [outcome for part in found for outcome in part]


def _teeth(options: argparse.Namespace) -> int:
    """Seek out every seeded bug; exit code 1 if one escapes or its seed is not clean without it."""
    from tests.sim.teeth import bite, bug_names

    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(bite, bug_names()))
    for one in found:
        caught = f"seed {one['seed']}: {one['said']}" if one["seed"] else "NOT CAUGHT"
        print(f"{one['bug']} ({one['check']}): {caught}")
        for check, what, _ in one["control"]:
            print(f"  without the bug the same seed fails too: {check}: {what}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file)
    return 0 if all(one["seed"] and not one["control"] for one in found) else 1


def _show(outcome: dict[str, Any], bug: str) -> None:
    """A failed run: what broke, its knobs, and how to see it again."""
    profile = outcome["knobs"]["profile"]
    print(f"seed {outcome['seed']} of profile {profile}, virtual time {outcome['virtual_s']:.3f} s")
    print("  knobs " + " ".join(f"{k}={json.dumps(v)}" for k, v in outcome["knobs"].items()))
    for check, what, at_s in outcome["violations"]:
        print(f"  {at_s:10.6f} {check}: {what}")
    print(
        f"  again: python -m tests.sim --profile {profile} --seed {outcome['seed']} --trace"
        + (f" --bug {bug}" if bug else "")
    )
    for line in outcome["trace"]:
        print("   ", line)


def _bug(name: str) -> Any:
    if not name:
        return None
    from tests.sim.kernel.install import load_without_engine

    load_without_engine()
    from tests.sim.bugs.all import BUGS

    return BUGS.get(name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description="Simulate engines, peers, ledger and coordinators from seeds, and check the "
        "invariants of the design. The same seed and knobs give the same run.",
    )
    parser.add_argument("--seed", type=int, help="replay this seed only")
    parser.add_argument("--seeds", type=int, default=SEEDS_DEFAULT, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=1, help="the first of them")
    parser.add_argument("--profile", choices=PROFILES, help="default: each of them")
    parser.add_argument(
        "--knob", action="append", default=[], metavar="NAME=VALUE",
        help="set a knob in place of what the seed draws (JSON); see tests/sim/world/knobs.py",
    )  # fmt: skip
    parser.add_argument("--trace", action="store_true", help="print what happened in failed runs")
    parser.add_argument(
        "--ledgers", default="", metavar="FOLDER",
        help="write the ledger of each run there, as PROFILE-SEED.kvf for `kvferry ... --file`",
    )  # fmt: skip
    parser.add_argument("--teeth", action="store_true", help="look for every seeded bug in turn")
    parser.add_argument("--bug", default="", help="apply a seeded bug, see tests/sim/bugs")
    parser.add_argument("--show", type=int, default=5, help="failed runs to print")
    parser.add_argument("--json", default="", metavar="FILE", help="write all outcomes there")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; default one per core"
    )
    return parser
