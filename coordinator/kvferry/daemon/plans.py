"""The plan service: where a prompt's prefix could come from, or why from nowhere."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from kvferry.core.messages import PlanRequest, encode
from kvferry.index.folded import Folded
from kvferry.index.planner import Planner
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.daemon")

TIMINGS_MAX = 2_048

_REQUESTS = msgspec.msgpack.Decoder(PlanRequest)


class PlanService(Planner):
    """Plans as nodes ask for them over the bus."""

    def __init__(
        self,
        replica: str,
        projector: Folded,
        *,
        weigh: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(replica, projector, weigh=weigh, clock=clock)
        self.answered = 0
        self.malformed = 0
        self._took_us: deque[float] = deque(maxlen=TIMINGS_MAX)

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One message on ``plan_subject(replica)``."""
        if reply is None:
            return
        begun = time.perf_counter()
        try:
            answer = self.answer(_REQUESTS.decode(data))
        except (msgspec.DecodeError, ValueError) as error:
            # The asker's deadline ends its wait; an answer would have to guess what it asked.
            self.malformed += 1
            log.warning("a plan request on %s cannot be read: %s", subject, error)
            return
        self._took_us.append((time.perf_counter() - begun) * 1e6)
        self.answered += 1
        await reply(encode(answer))

    def timings_us(self) -> dict[str, float]:
        """p50 and p99 of the last answers' own time, in microseconds; empty before the first."""
        took = sorted(self._took_us)
        if not took:
            return {}
        return {"p50": took[len(took) // 2], "p99": took[min(len(took) - 1, len(took) * 99 // 100)]}
