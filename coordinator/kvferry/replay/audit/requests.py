"""A request ends once, and local, pulled and computed tokens are its prompt."""

from __future__ import annotations

from kvferry.core.events import Requested, RequestEnded
from kvferry.replay.audit.finding import End, Findings, Seen
from kvferry.replay.audit.recent import Recent

OPEN_MAX = 200_000
ENDED_MAX = 200_000


class Requests:
    """Sums and ends of requests."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str, str], Seen] = {}
        self._ended: Recent[tuple[str, str, str, str]] = Recent(ENDED_MAX)

    def see(self, seen: Seen, found: Findings) -> None:
        event = seen.entry.event
        if isinstance(event, Requested):
            key = (*seen.life, event.request)
            if key not in self._ended and len(self._open) < OPEN_MAX:
                self._open[key] = seen
        elif isinstance(event, RequestEnded):
            self._end(seen, event, found)

    def _end(self, seen: Seen, event: RequestEnded, found: Findings) -> None:
        key = (*seen.life, event.request)
        self._open.pop(key, None)
        if key in self._ended:
            found.broken(
                "ends_once",
                seen,
                event.request,
                f"request {event.request} ended a second time on {seen.node}",
            )
        self._ended.add(key)
        parts = event.local_tokens + event.pulled_tokens + event.computed_tokens
        if parts != event.prompt_tokens:
            found.broken(
                "conservation",
                seen,
                event.request,
                f"request {event.request} had a prompt of {event.prompt_tokens} tokens, but "
                f"{event.local_tokens} local + {event.pulled_tokens} pulled + "
                f"{event.computed_tokens} computed are {parts}",
            )

    def end(self, end: End, found: Findings) -> None:
        for (*life, request), seen in self._open.items():
            waits_ms = end.stored_ms - seen.stored_ms
            if waits_ms < end.patience_ms or tuple(life) not in end.living:
                continue
            found.broken(
                "everything_ends",
                seen,
                request,
                f"request {request} began on {seen.node} {waits_ms / 1000:.0f} s before the end of "
                "the range and has not ended, although the node lives",
            )
