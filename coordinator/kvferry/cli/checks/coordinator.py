"""The coordinator: alive, one leader, not behind; and what it has in force."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.cli.checks.finding import Finding, fail, ok, warn
from kvferry.core.messages import Announce
from kvferry.core.state import State

LAG_MESSAGES_MAX = 1_000


def check_coordinator(alive: Sequence[Announce], last_seq: int) -> list[Finding]:
    """``last_seq``: the facts stream's last sequence just before the announcements came."""
    check = "coordinator"
    if not alive:
        return [
            fail(
                check,
                "none answers: requests without a hint recompute, silent nodes go unnoticed",
                "start one with `kvferry up` or `kvferry coordinator`",
            )
        ]
    leaders = [one for one in alive if one.leader]
    findings = []
    for one in alive:
        lag = max(0, last_seq - one.position)
        role = f"leads, term {one.term}" if one.leader else "stands by"
        if lag > LAG_MESSAGES_MAX:
            findings.append(
                warn(
                    f"{check} {one.replica}",
                    f"{role}; {lag} messages behind the ledger",
                    "wait until it has caught up; if it does not, give it a core of its own",
                )
            )
        else:
            findings.append(ok(f"{check} {one.replica}", f"{role}; {lag} messages behind"))
    if len(leaders) > 1:
        names = ", ".join(f"{one.replica} (term {one.term})" for one in leaders)
        findings.append(
            warn(check, f"several say that they lead: {names}", "the lower terms step down soon")
        )
    return findings


def check_record(state: State) -> list[Finding]:
    """What the ledger itself says is wrong: paused spaces, gaps, undecodable messages."""
    findings = []
    for name, space in sorted(state.spaces.items()):
        modes = {name: space.mode} | {f"{name}, node {node}": m for node, m in space.modes.items()}
        findings += [
            warn(f"policy of {where}", f"is {mode}", "`kvferry resume` puts reuse back in force")
            for where, mode in sorted(modes.items())
            if mode in ("paused", "observe")
        ]
        if space.totals.gaps.get("facts"):
            findings.append(
                warn(
                    f"facts of {name}",
                    f"{space.totals.gaps['facts']} were lost before they reached the ledger; the "
                    "nodes sent inventories since",
                    "NATS was slow or gone for long: see its log, and the engines'",
                )
            )
    if state.quarantined_total:
        places = ", ".join(str(one.seq) for one in state.quarantined[-5:])
        findings.append(
            warn(
                "undecodable messages",
                f"{state.quarantined_total} so far, the last at sequence {places}",
                "`kvferry events --from SEQ --limit 1` shows why; usually a newer kvferry wrote "
                "them: upgrade this one",
            )
        )
    return findings
