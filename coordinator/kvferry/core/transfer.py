"""The life of a transfer as data: the target's phases and the phases of the source's pin.

Both tables map (phase, event) to the next phase; what is not in a table is illegal. A message that
is repeated after a pin's end keeps the phase: it gets the same answer again.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvferry.errors import IllegalTransition

Table = Mapping[tuple[str, str], str]

PLANNED, PINNING, PINNED, READING, SETTLING = (
    "planned",
    "pinning",
    "pinned",
    "reading",
    "settling",
)
TRANSFERRED, FAILED = "transferred", "failed"
TRANSFER_PHASES = (PLANNED, PINNING, PINNED, READING, SETTLING, TRANSFERRED, FAILED)

FAILURES = (
    "void",
    "digest",
    "refused",
    "busy",
    "unreachable",
    "deadline",
    "aborted",
    "error",
    "node_left",
    "unused",
)
"""Events that fail a transfer; the reasons of ``transfer_failed``."""

_FAILS_IN = {
    PLANNED: ("unreachable", "deadline", "aborted", "error", "unused"),
    PINNING: ("refused", "unreachable", "deadline", "aborted", "error", "unused"),
    PINNED: ("refused", "unreachable", "deadline", "aborted", "error", "unused"),
    READING: ("digest", "refused", "busy", "unreachable", "deadline", "aborted", "error", "unused"),
    SETTLING: ("void", "refused", "unreachable", "deadline", "aborted", "error", "unused"),
}

TRANSFER_TABLE: Table = {
    (PLANNED, "pin"): PINNING,
    (PINNING, "pin"): PINNING,  # the answer got lost; the source repeats it
    (PINNING, "granted"): PINNED,
    (PINNED, "renewed"): PINNED,
    (PINNED, "read"): READING,
    (READING, "renewed"): READING,
    (READING, "arrived"): SETTLING,
    (SETTLING, "done"): SETTLING,  # the answer got lost
    (SETTLING, "intact"): TRANSFERRED,
    **{(phase, event): FAILED for phase, events in _FAILS_IN.items() for event in events},
    **{(phase, "node_left"): FAILED for phase in _FAILS_IN},
}
"""The target's view."""

UNKNOWN, REFUSED, INTACT, VOID = "unknown", "refused", "intact", "void"
ABORTED, EXPIRED, CLOSED, TOMBSTONE = "aborted", "expired", "closed", "tombstone"
PIN_PHASES = (
    UNKNOWN,
    PINNED,
    REFUSED,
    INTACT,
    VOID,
    ABORTED,
    EXPIRED,
    CLOSED,
    TOMBSTONE,
)
PIN_ENDS = (INTACT, VOID, ABORTED, EXPIRED, CLOSED)
"""Phases in which a pin has ended after having held blocks."""

_REPEATS = ("pin", "renew", "done", "abort")
"""Messages of the target that an ended pin still answers."""

PIN_TABLE: Table = {
    (UNKNOWN, "pin"): PINNED,
    (UNKNOWN, "refuse"): REFUSED,
    (UNKNOWN, "done"): TOMBSTONE,
    (UNKNOWN, "abort"): TOMBSTONE,
    (REFUSED, "pin"): PINNED,  # what was not held then may be held now
    (REFUSED, "refuse"): REFUSED,
    (REFUSED, "done"): TOMBSTONE,
    (REFUSED, "abort"): TOMBSTONE,
    (PINNED, "pin"): PINNED,
    (PINNED, "renew"): PINNED,
    (PINNED, "intact"): INTACT,
    (PINNED, "void"): VOID,
    (PINNED, "abort"): ABORTED,
    (PINNED, "deadline"): EXPIRED,
    (PINNED, "close"): CLOSED,
    **{(phase, message): phase for phase in (*PIN_ENDS, TOMBSTONE) for message in _REPEATS},
    **{(phase, "forget"): TOMBSTONE for phase in PIN_ENDS},
}
"""The source's view. ``intact`` and ``void`` are how it settles the last rank's ``done``."""

PIN_HOW = {
    INTACT: "intact",
    VOID: "void",
    ABORTED: "abort",
    EXPIRED: "deadline",
    REFUSED: "refused",
    CLOSED: "closed",
}
"""An ended pin's phase to ``how`` of its ``pin_ended``."""


def step(table: Table, phase: str, event: str) -> str:
    """The next phase.

    Raises:
        IllegalTransition: the table does not allow the event in this phase.
    """
    following = table.get((phase, event))
    if following is None:
        allowed = ", ".join(allowed_events(table, phase)) or "nothing, it has ended"
        raise IllegalTransition(f"{event!r} does not fit phase {phase!r}; allowed: {allowed}")
    return following


def allowed_events(table: Table, phase: str) -> tuple[str, ...]:
    """Events that the table allows in this phase, sorted."""
    return tuple(sorted(event for known, event in table if known == phase))
