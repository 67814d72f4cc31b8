"""The commands of ``kvferry``: the one place where a command is registered.

Each is listed with the first paragraph of its own help. Those that other packages bring are
handed on by :mod:`kvferry.cli.plugins`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.cli.lazy import Entry, LazyGroup

RUN, LOOK, STEER = "Run", "Look", "Steer"
COMMANDS = (
    Entry(
        "up",
        "kvferry.cli.up:command",
        "Run a ledger and a coordinator on this machine, for one host.",
        RUN,
    ),
    Entry(
        "coordinator",
        "kvferry.cli.coordinator:command",
        "Run a coordinator. Two or more may run: one leads, all answer plans.",
        RUN,
    ),
    Entry(
        "router",
        "kvferry.cli.plugins:router",
        "Serve an OpenAI-compatible API in front of prefill and decode engines.",
        RUN,
    ),
    Entry(
        "demo",
        "kvferry.cli.plugins:demo",
        "Show two engines that pull each other's KV, on this machine.",
        RUN,
    ),
    Entry(
        "tilert-node",
        "kvferry.cli.plugins:tilert_node",
        "Run a TileRT decode server that keeps what it generates.",
        RUN,
    ),
    Entry(
        "status",
        "kvferry.cli.status:command",
        "Show nodes, offers, transfers, reuse in tokens, and why requests reused nothing.",
        LOOK,
    ),
    Entry(
        "top",
        "kvferry.cli.top:command",
        "Watch nodes, leases, requests, transfers, misses and TileRT slots live.",
        LOOK,
    ),
    Entry(
        "events",
        "kvferry.cli.events:command",
        "Show events of the ledger: a range, the last few, or as they come.",
        LOOK,
    ),
    Entry(
        "explain",
        "kvferry.cli.explain:command",
        "Tell the story of a request, session, transfer or block, in order and in plain words.",
        LOOK,
    ),
    Entry(
        "replay",
        "kvferry.cli.replay:command",
        "Show nodes, offers, transfers and totals as they were at a point.",
        LOOK,
    ),
    Entry(
        "diff",
        "kvferry.cli.diff:app",
        "Tell what differs between two points of a ledger, or between two ledgers; code 1 if any.",
        LOOK,
    ),
    Entry(
        "audit",
        "kvferry.cli.audit:command",
        "Check the invariants of the ledger over a range; code 1 if any is broken.",
        LOOK,
    ),
    Entry(
        "whatif",
        "kvferry.cli.whatif:command",
        "Decide history again under another policy: what would it have cost, what saved?",
        LOOK,
    ),
    Entry(
        "advise",
        "kvferry.cli.advise:command",
        "Say whether moving KV between engines pays for this traffic, and why.",
        LOOK,
    ),
    Entry(
        "export",
        "kvferry.cli.export:command",
        "Write the ledger, or a part of it, to one compressed file.",
        LOOK,
    ),
    Entry(
        "import",
        "kvferry.cli.importing:command",
        "Append an exported file to an empty ledger.",
        LOOK,
    ),
    Entry(
        "doctor",
        "kvferry.cli.doctor:command",
        "Check the ledger, the coordinator, the engines and this machine.",
        LOOK,
    ),
    Entry(
        "version",
        "kvferry.cli.version:command",
        "Show the versions of kvferry and of what it works with.",
        LOOK,
    ),
    Entry(
        "bench",
        "kvferry.cli.bench:app",
        "Measure what this machine, or two of them, can do.",
        LOOK,
    ),
    Entry(
        "pause",
        "kvferry.cli.policy:pause",
        "Stop reuse: leases drain and plans say recompute. Engines go on serving.",
        STEER,
    ),
    Entry(
        "resume",
        "kvferry.cli.policy:resume",
        "Put reuse back in force after `pause` or `observe`.",
        STEER,
    ),
    Entry(
        "observe",
        "kvferry.cli.policy:observe",
        "Lease and pull nothing, but record what would have been done.",
        STEER,
    ),
    Entry(
        "policy",
        "kvferry.cli.keeping:command",
        "Show how each node keeps blocks, or set it while engines run.",
        STEER,
    ),
    Entry(
        "drain",
        "kvferry.cli.draining:drain",
        "Lend a TileRT decode node no more. A request that has it goes on to its end.",
        STEER,
    ),
    Entry(
        "undrain",
        "kvferry.cli.draining:undrain",
        "Lend a TileRT decode node again after `drain`.",
        STEER,
    ),
)


class Commands(LazyGroup):
    """What ``kvferry`` runs."""

    def entries(self) -> Iterable[Entry]:
        return COMMANDS
