"""A prefill engine: pulls what others hold, computes the rest, one request after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.fleet import Job, Shared
from kvferry.bench.policy.moves import Choice, Mover
from kvferry.replay.trace import BLOCK_TOKENS, Turn

AHEAD_MAX = 4
"""Requests that have memory and may pull while another one is computed."""


class PrefillEngine(Engine):
    """The turns of a pool's share.

    Args:
        mover: finds sources; None if nothing ever comes back.
        done: called with each job whose prompt is computed; its blocks stay held until
            :meth:`was_read`.
    """

    def __init__(
        self,
        name: str,
        shared: Shared,
        capacity: int,
        mover: Mover | None,
        done: Callable[[Job], None],
    ) -> None:
        super().__init__(name, "prefill", shared, capacity)
        self._mover = mover
        self._done = done
        self._admitted: deque[Job] = deque()
        self._computing = False

    def was_read(self, job: Job) -> None:
        """The decode engine has the prompt: nobody holds its blocks here any longer."""
        turn = job.turn
        self.keeper.left(self, job, read=True)
        self.pool.give_back(turn.chain, _unnamed(turn))
        self.advance()

    def _work(self) -> None:
        while (
            self._waiting
            and len(self._admitted) < AHEAD_MAX
            and self._has_room(self._waiting[0], _unnamed(self._waiting[0].turn))
        ):
            self._admit(self._waiting.popleft())
        if self._admitted and not self._computing and self._admitted[0].loaded:
            self._compute(self._admitted[0])

    def _admit(self, job: Job) -> None:
        chain = job.turn.chain
        local = self.pool.known_prefix(chain)
        choice = self._mover.choose(self, chain, local) if self._mover is not None else None
        self.pool.take(chain, _unnamed(job.turn))
        self._admitted.append(job)
        if choice is None or choice.source is None:
            job.not_pulled = choice.why if choice is not None else "never_fetched"
            return
        job.loaded = False
        self._pull(job, choice, choice.source, local)

    def _pull(self, job: Job, choice: Choice, source: Engine, local: int) -> None:
        shared, turn = self.shared, job.turn
        size = (choice.blocks - local) * shared.block_bytes
        kind = "host>hbm" if source is self else f"{source.role}>{self.role}"
        ends_s = shared.links.move(
            source.name, self.name, kind, size, self.now_s, from_host=choice.from_host
        )

        def ends() -> None:
            # The source is asked again: what it lost meanwhile must not be used.
            intact = source is self or source.held(turn.chain[: choice.blocks]).blocks
            job.loaded = True
            if source is self or intact == choice.blocks:
                self._arrived(turn.chain[local : choice.blocks])
                shared.figures.pulled_blocks += choice.blocks - local
                if source is not self:
                    source.keeper.read(source, turn, choice.blocks)
            else:
                job.not_pulled = "void"
            self.advance()

        shared.clock.at(ends_s, ends)

    def _compute(self, job: Job) -> None:
        shared, turn = self.shared, job.turn
        self._computing = True
        hit = self.pool.ready_prefix(turn.chain)
        self.pool.begun(turn.chain)
        context = hit * BLOCK_TOKENS
        tokens = turn.tokens - context
        took_s = shared.shape.prefill_s(tokens, context)
        self._count(job, hit, tokens, took_s)

        def ends() -> None:
            self._computing = False
            self._admitted.popleft()
            self._arrived(turn.chain)
            self.in_flight -= 1
            shared.links.prefill[self.name].observe(tokens, context, took_s * 1_000.0)
            self._done(job)
            self.advance()

        shared.clock.at(self.now_s + took_s, ends)

    def _count(self, job: Job, hit: int, tokens: int, took_s: float) -> None:
        figures, copies = self.shared.figures, self.shared.copies
        figures.prompt_tokens += job.turn.tokens
        figures.hit_tokens += hit * BLOCK_TOKENS
        figures.computed_tokens += tokens
        figures.prefill_s += took_s
        for block in job.turn.chain[hit:]:
            why = copies.why_gone(block)
            if why is not None:
                figures.lost[why or job.not_pulled or "behind_a_hole"] += 1
        copies.begun(job.turn.chain)


def _unnamed(turn: Turn) -> int:
    return turn.blocks - len(turn.chain)
