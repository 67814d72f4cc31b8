"""What engines did: requests that ended on nodes, and what left a node's cache for them."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from kvferry.errors import ConfigError
from kvferry.ids import SHORT_BYTES, sample_stride
from kvferry.replay.trace import BLOCK_TOKENS, read_trace

BLOCK_SIZE = 16
"""Tokens in a block, as vLLM has it."""
SAMPLE_BLOCKS = sample_stride(BLOCK_SIZE)
SEED = 7
QUESTIONS = 200
"""Different chains that are looked up, as often as it takes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which load; small enough to be told to another process.

    Raises:
        ConfigError: a figure makes no sense; names its option.
    """

    nodes: int = 8
    chains: int = 240
    chain_blocks: int = 4_096
    run_blocks: int = 64
    """What a request adds to its chain."""
    trace: str = ""
    """A trace in Mooncake's format instead of the chains."""
    pool_blocks: int = 0
    """Of each node; 0 for as many as it takes."""
    lookups: int = 2_000

    def __post_init__(self) -> None:
        for name in ("nodes", "chains", "chain_blocks", "run_blocks", "lookups"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 or more"
                )
        if self.run_blocks % SAMPLE_BLOCKS:
            raise ConfigError(
                f"--run-blocks {self.run_blocks} is not a multiple of {SAMPLE_BLOCKS}: an index "
                "that samples hashes would answer otherwise than one that does not"
            )
        if self.chain_blocks % self.run_blocks:
            raise ConfigError(
                f"--chain-blocks {self.chain_blocks} is not a multiple of --run-blocks "
                f"{self.run_blocks}; a chain is made of whole runs"
            )
        if self.pool_blocks < 0:
            raise ConfigError(f"--pool-blocks {self.pool_blocks}: use 0 for no bound, or more")
        if not self.trace and 0 < self.pool_blocks < self.chain_blocks:
            raise ConfigError(
                f"--pool-blocks {self.pool_blocks} does not hold a chain of {self.chain_blocks} "
                "blocks; raise it, or lower --chain-blocks"
            )

    @property
    def unit_blocks(self) -> int:
        """Blocks of a unit."""
        return BLOCK_TOKENS // BLOCK_SIZE if self.trace else self.run_blocks


class Asked(NamedTuple):
    """A request: the node that runs it, and its chain as units."""

    node: int
    units: tuple[int, ...]


class Ended(NamedTuple):
    """A request ended on its node, which had the first ``before`` units of its chain already."""

    node: int
    units: tuple[int, ...]
    before: int


class Gone(NamedTuple):
    """Units that a node gives up, each after all that follow it in their chains."""

    node: int
    units: tuple[int, ...]


Fact: TypeAlias = Ended | Gone


def hashes_of(units: Iterable[int], unit_blocks: int) -> bytes:
    """The short hashes of the units' blocks, joined: as good as random, and always the same."""
    size = unit_blocks * SHORT_BYTES
    return b"".join(hashlib.shake_128(unit.to_bytes(8, "big")).digest(size) for unit in units)


def requests_of(plan: Plan) -> list[Asked]:
    """Every request in order.

    Raises:
        ConfigError: the trace cannot be used.
    """
    if plan.trace:
        return _from_trace(Path(plan.trace), plan.nodes)
    steps = plan.chain_blocks // plan.run_blocks
    return [
        Asked(chain % plan.nodes, tuple(range(chain * steps, chain * steps + step + 1)))
        for step in range(steps)
        for chain in range(plan.chains)
    ]


def facts_of(plan: Plan, requests: Sequence[Asked]) -> Iterator[Fact]:
    """What happens on the nodes: a full pool gives up what was used longest ago, tails first."""
    room = plan.pool_blocks // plan.unit_blocks if plan.pool_blocks else 0
    caches = [OrderedDict[int, None]() for _ in range(plan.nodes)]
    for node, units in requests:
        cache = caches[node]
        before = next((at for at, unit in enumerate(units) if unit not in cache), len(units))
        if room and len(units) > room:
            continue  # no engine takes a prompt that its pool does not hold
        for unit in reversed(units):
            cache.pop(unit, None)
            cache[unit] = None
        gone = []
        while room and len(cache) > room:
            gone.append(cache.popitem(last=False)[0])
        if gone:
            yield Gone(node, tuple(gone))
        yield Ended(node, units, before)


def questions_of(plan: Plan, requests: Sequence[Asked]) -> list[tuple[int, ...]]:
    """Chains to look up: whole ones of the made load, or those of any requests of the trace."""
    whole = requests if plan.trace else requests[-plan.chains :]
    return [asked.units for asked in random.Random(SEED).sample(whole, min(QUESTIONS, len(whole)))]


def _from_trace(path: Path, nodes: int) -> list[Asked]:
    """A session stays on its node; a new one goes to the next."""
    at: dict[str, int] = {}
    found = []
    for turn in read_trace(path):
        if turn.chain:
            found.append(Asked(at.setdefault(turn.session, len(at) % nodes), turn.chain))
    if not found:
        raise ConfigError(
            f"--trace {path} has no prompt of {BLOCK_TOKENS} tokens or more: nothing can be shared"
        )
    return found
