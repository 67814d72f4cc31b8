"""Fixed pins: a decode engine keeps each finished request until it is read or its time is up."""

from __future__ import annotations

from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.fleet import Job
from kvferry.bench.policy.keeper import CacheOnly
from kvferry.replay.trace import Turn


class FixedPins(CacheOnly):
    """As vLLM's bidirectional NixlConnector does it with ``decoder_kv_blocks_ttl``."""

    def __init__(self, ttl_s: float) -> None:
        super().__init__()
        self._ttl_s = ttl_s
        self._pinned: dict[int, tuple[Turn, int]] = {}
        """By the chain's last block, with the number of the pin."""
        self._number = 0

    def left(self, engine: Engine, job: Job, *, read: bool) -> None:
        turn = job.turn
        if read or not turn.chain:
            return
        self._end(engine, turn.chain[-1], "superseded")
        self._number += 1
        number, last = self._number, turn.chain[-1]
        engine.pool.hold(turn.chain)
        self._pinned[last] = (turn, number)

        def expire() -> None:
            if self._pinned.get(last, (turn, 0))[1] == number:
                self._end(engine, last, "expired")
                engine.advance()

        engine.shared.clock.at(engine.now_s + self._ttl_s, expire)

    def read(self, engine: Engine, turn: Turn, blocks: int) -> None:
        # The reader's chain goes on where an earlier turn's ended: that is the pin that it used.
        for block in reversed(turn.chain[:blocks]):
            if block in self._pinned:
                self._end(engine, block, "read")
                engine.advance()
                return

    def _end(self, engine: Engine, last: int, reason: str) -> None:
        found = self._pinned.pop(last, None)
        if found is not None:
            engine.pool.give_back(found[0].chain)
            engine.shared.figures.ended[reason] += 1
