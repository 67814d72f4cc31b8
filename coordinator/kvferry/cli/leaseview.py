"""Leases and sessions of the status document as text for people."""

from __future__ import annotations

from typing import Any

from kvferry.cli import render
from kvferry.cli.times import duration

Document = dict[str, Any]
FOR = {
    "handover": "for an engine that is about to read them",
    "retain": "because a client asked",
    "expected": "for a session whose next turn is likely",
    "unnamed": "for a reason that its node did not say",
}


def print_leases(leases: Document, evictions: Document) -> None:
    """What is leased and why, and why leases and offers have ended."""
    for tier, by_why in leases.items():
        for why, held in by_why.items():
            render.line(
                f"leased in {tier}: {render.number(held['leases'])} runs, "
                f"{render.number(held['blocks'])} blocks, {FOR.get(why, why)}"
            )
    if evictions:
        ends = ", ".join(f"{render.number(count)} {why}" for why, count in evictions.items())
        render.line(f"offers and leases that ended or shrank: {ends}")


def print_sessions(sessions: Document) -> None:
    """Whether and when sessions come back, once something was learned of it."""
    if not sessions["gaps"]:
        return
    render.line(
        f"sessions: {render.number(sessions['waited_for'])} may come back; learned from "
        f"{render.number(sessions['gaps'])} gaps between turns:"
    )
    for name, words in (("after_first_turn", "first turns"), ("after_later_turns", "later turns")):
        habits = sessions[name]
        half = ""
        if habits["median_s"] is not None:
            half = f", half of these within {duration(1_000 * habits['median_s'])}"
        render.line(f"  after {words} {100 * habits['returns']:.0f} % come back{half}")
