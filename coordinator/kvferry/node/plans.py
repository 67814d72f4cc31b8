"""Asking the coordinator where a prompt's prefix lies."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.core.messages import PlanAnswer, PlanRequest

Done = Callable[[PlanAnswer | None, str], None]
"""Called with an answer and ``""``, or with None and ``no_coordinator`` or ``plan_late``."""


class PlanClient:
    """Plans by request and reply, never waited for by an engine thread."""

    def ask(self, request: PlanRequest, done: Done) -> None:
        """Ask; returns at once. Any thread.

        ``done`` is called exactly once, on the agent's thread, within ``plan_deadline_ms``.
        Before the agent started and after it stopped it is called at once, by the caller.
        """
        done(None, "no_coordinator")

    def available(self) -> bool:
        """Whether asking makes sense now: a ledger, a live replica and a closed breaker."""
        return False
