"""A decode engine: fetches a prompt's KV from the prefill engine, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.fleet import Job, Shared
from kvferry.bench.policy.prefill import PrefillEngine
from kvferry.replay.trace import BLOCK_TOKENS, Turn

RUNNING_MAX = 256
"""Requests that an engine answers at the same time."""


class DecodeEngine(Engine):
    """The turns of a pool's share.

    A request gets memory for its prompt and its whole answer before it begins, so none is ever
    preempted.

    Args:
        prefill: the engines from which prompts come, by name.
        done: called with each job whose answer is complete.
    """

    def __init__(
        self,
        name: str,
        shared: Shared,
        capacity: int,
        prefill: Mapping[str, PrefillEngine],
        done: Callable[[Job], None],
    ) -> None:
        super().__init__(name, "decode", shared, capacity)
        self._prefill = prefill
        self._done = done
        self._running = 0

    def submit(self, job: Job) -> None:
        super().submit(job)
        if self._waiting and self._waiting[-1] is job:
            self._is_short(job)  # Nothing else makes a request wait here.

    def _work(self) -> None:
        while (
            self._waiting
            and self._running < RUNNING_MAX
            and self._has_room(self._waiting[0], _unnamed(self._waiting[0].turn))
        ):
            self._admit(self._waiting.popleft())

    def _admit(self, job: Job) -> None:
        shared, turn = self.shared, job.turn
        self._running += 1
        local = self.pool.known_prefix(turn.chain)
        self.pool.take(turn.chain, _unnamed(turn))
        size = (turn.tokens - local * BLOCK_TOKENS) * shared.shape.token_bytes
        arrives_s = shared.links.move(
            job.prefill, self.name, "prefill>decode", size, self.now_s, from_host=False
        )

        def arrives() -> None:
            self._arrived(turn.chain)
            self._prefill[job.prefill].was_read(job)
            first_s = self.now_s + shared.shape.request_s + shared.shape.step_s
            shared.figures.ttft_s.append(first_s - job.sent_s)
            shared.clock.at(first_s + (turn.answer - 1) * shared.shape.step_s, ends)

        def ends() -> None:
            self.keeper.left(self, job, read=False)
            self.pool.give_back(turn.chain, _unnamed(turn))
            self._running -= 1
            self.in_flight -= 1
            self._done(job)
            self.advance()

        shared.clock.at(arrives_s, arrives)


def _unnamed(turn: Turn) -> int:
    return turn.all_blocks - len(turn.chain)
