"""The coordinator's own benchmarks: what stands behind ``kvferry bench``, one part a command.

A command is a plain function with Typer's annotations, listed in :data:`COMMANDS` and imported
when it is asked for, so that neither a listing nor another command pays for it. What they share
(the ``--json`` option, percentiles, the document's frame) is in :mod:`kvferry.bench.results`.
Benchmarks of other packages come by the entry-point group ``kvferry.benches`` instead.
"""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """A benchmark before it is imported."""

    target: str
    """``module:function``."""
    summary: str
    """The first paragraph of its help."""


COMMANDS: dict[str, Listed] = {
    "index": Listed(
        "kvferry.bench.index.command:command",
        "Measure the residency index: blocks taken in a second, time of a lookup, memory.",
    ),
    "outbox": Listed(
        "kvferry.bench.outbox:command",
        "Measure what leaving a step's events in the outbox costs the engine's thread.",
    ),
    "plan": Listed(
        "kvferry.bench.plan.command:command",
        "Measure plans under load: nats-server, coordinator and asking nodes in separate "
        "processes.",
    ),
    "policy": Listed(
        "kvferry.bench.policy.command:command",
        "Compare retention policies on a recorded trace, with equal memory.",
    ),
    "rebuild": Listed(
        "kvferry.bench.rebuild.command:command",
        "Measure how long a new coordinator takes to know all: by replay, and from a snapshot.",
    ),
}
"""By the command's name."""
