"""The coordinator's own benchmarks: what stands behind ``kvferry bench``, one part a command.

A command is a plain function with Typer's annotations, listed in :data:`COMMANDS` and imported
when it is asked for, so that no other command pays for it. What they share (the ``--json`` option,
percentiles, the document's frame) is in :mod:`kvferry.bench.results`. Benchmarks of other packages
come by the entry-point group ``kvferry.benches`` instead.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "index": "kvferry.bench.index.command:command",
    "outbox": "kvferry.bench.outbox:command",
    "plan": "kvferry.bench.plan.command:command",
    "policy": "kvferry.bench.policy.command:command",
    "rebuild": "kvferry.bench.rebuild.command:command",
}
"""Name of a command to ``module:function``."""
