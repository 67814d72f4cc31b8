"""Where a prefill engine gets a prefix from: the real placement and cost model decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvferry.bench.policy.engine import Engine, Held
from kvferry.bench.policy.fleet import Shared
from kvferry.core.placement import Source, rank
from kvferry.replay.trace import BLOCK_TOKENS


class Choice(NamedTuple):
    """What to pull.

    Attributes:
        source: None to pull nothing.
        blocks: end of what is pulled, in blocks from the chain's beginning.
        from_host: some of it lies in the source's host memory.
        why: why nothing is pulled although somebody has it.
    """

    source: Engine | None
    blocks: int = 0
    from_host: bool = False
    why: str = ""


class Mover:
    """Chooses among the engines of a fleet, which are added once they exist."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.engines: list[Engine] = []

    def choose(self, target: Engine, chain: Sequence[int], local: int) -> Choice:
        """The best source for what follows on the first ``local`` blocks of a chain."""
        found: dict[str, tuple[Engine, Held]] = {}
        for engine in self.engines:
            held = engine.held(chain)
            if held.blocks > local:
                found[engine.name] = engine, held
        if not found:
            return Choice(None)
        ranked = rank(
            [self._source(engine, held, target, local) for engine, held in found.values()],
            block_size=BLOCK_TOKENS,
            prefill=self._shared.links.prefill.get(target.name),
            target=target.name,
        )
        if not ranked[0].worth:
            return Choice(None, why="too_dear")
        engine, held = found[ranked[0].source.node]
        return Choice(engine, held.blocks, held.from_host)

    def _source(self, engine: Engine, held: Held, target: Engine, local: int) -> Source:
        links, pair = self._shared.links, (engine.name, target.name)
        queue_s = links.queue_s(*pair, target.now_s, from_host=held.from_host)
        return Source(
            node=engine.name,
            blocks=held.blocks - local,
            block_bytes=self._shared.block_bytes,
            tier="host" if held.from_host else "cache",
            link=links.known(*pair, from_host=held.from_host),
            queue_ms=queue_s * 1_000.0,
        )
