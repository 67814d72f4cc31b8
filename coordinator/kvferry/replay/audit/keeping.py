"""Leases last no longer than what is set of how their node keeps.

Only noted: a node follows a policy once it has heard of it, and an idle engine with its next step.
"""

from __future__ import annotations

from kvferry.core.events import PolicySet, Retained
from kvferry.core.kept import kept
from kvferry.core.leases import HBM
from kvferry.core.retention_actions import EXPECTED, HANDOVER, RETAIN
from kvferry.core.retention_value import Rules
from kvferry.core.state import State
from kvferry.replay.audit.finding import End, Findings, Seen

HEARD_MS = 30_000
"""Within so long after a policy a node may not have followed it yet."""


class Keeping:
    """Leases beside the policy in force.

    Args:
        state: the fold as far as the range is read.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._set_ms: dict[str, int] = {}
        """When something was last set, by space."""

    def see(self, seen: Seen, found: Findings) -> None:
        event, name = seen.entry.event, seen.batch.space
        if isinstance(event, PolicySet) and event.keeps:
            self._set_ms[name] = seen.stored_ms
        if not isinstance(event, Retained) or event.tier != HBM:
            return
        if seen.stored_ms - self._set_ms.get(name, 0) < HEARD_MS:
            return
        space = self._state.spaces.get(name)
        node = space.nodes.get(seen.node) if space is not None else None
        if space is None or node is None or node.incarnation != seen.batch.incarnation:
            return
        settings = space.retention_of(node.name)
        most_ms = _most_ms(event.why, kept(node, settings).rules)
        if settings.given() and 0 <= most_ms < event.ttl_ms:
            found.note(
                "policy",
                seen,
                event.offer,
                f"lease {event.offer} of {seen.node} is for {event.ttl_ms / 1000:g} s, and "
                f"{most_ms / 1000:g} s is the most by the policy in force: the node has not "
                "followed it",
            )

    def end(self, end: End, found: Findings) -> None:
        """Nothing is open at the end."""


def _most_ms(why: str, rules: Rules) -> int:
    """The longest lease of this kind; below 0 for one that does not say what it is for."""
    if why == RETAIN:
        return rules.retain_max_ms
    return rules.lease_ms if why in (HANDOVER, EXPECTED) else -1
