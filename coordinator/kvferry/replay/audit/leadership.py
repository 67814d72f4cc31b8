"""Terms only grow, and a term is given once."""

from __future__ import annotations

from kvferry.core.events import COORD, LeaderElected
from kvferry.replay.audit.finding import End, Findings, Seen


class Leadership:
    """Who leads each space."""

    def __init__(self) -> None:
        self._terms: dict[str, LeaderElected] = {}

    def see(self, seen: Seen, found: Findings) -> None:
        if seen.batch.lane != COORD:
            return
        event, space = seen.entry.event, seen.batch.space
        now = self._terms.get(space)
        if isinstance(event, LeaderElected):
            if now is not None and event.term <= now.term:
                found.broken(
                    "one_leader",
                    seen,
                    f"term {event.term}",
                    f"{event.replica} was elected for term {event.term} of {space}, in which "
                    f"{now.replica} leads for term {now.term}",
                )
                return
            self._terms[space] = event
        elif now is not None and seen.batch.epoch < now.term:
            found.note(
                "deposed",
                seen,
                f"term {seen.batch.epoch}",
                f"a decision of term {seen.batch.epoch} came after {now.replica} was elected for "
                f"term {now.term}; it is void: {seen.told}",
            )

    def end(self, end: End, found: Findings) -> None:
        """Nothing is open at the end."""
