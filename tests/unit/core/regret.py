"""A pair of nodes whose link changes, and what choosing by the learned costs loses by that."""

from __future__ import annotations

import random

import msgspec
from tests.unit.core.support import BLOCK_SIZE, started

from kvferry.core.events import Requested, RequestEnded, Transferred
from kvferry.core.placement import Ranked, rank, trial
from kvferry.core.sources import source_for

BLOCK_BYTES = 4_096


class World(msgspec.Struct, kw_only=True):
    """The truth: milliseconds of a link and of prefill, and the noise of single times."""

    floor_ms: float = 3.0
    bytes_per_ms: float
    token_ms: float = 0.1
    pair_ms: float = 4e-6
    """A token and one token before it."""
    noise: float = 0.15

    def move_ms(self, blocks: int) -> float:
        return self.floor_ms + blocks * BLOCK_BYTES / self.bytes_per_ms

    def compute_ms(self, start: int, end: int) -> float:
        """Tokens ``start`` to ``end``."""
        pairs = (end * end - start * start) / 2
        return self.token_ms * (end - start) + self.pair_ms * pairs


def bytes_per_ms(world_ratio: float, tokens: int = 16_000) -> float:
    """A rate with which moving ``tokens`` tokens takes ``world_ratio`` times computing them."""
    truth = World(bytes_per_ms=1.0)
    room_ms = world_ratio * truth.compute_ms(0, tokens) - truth.floor_ms
    return tokens / BLOCK_SIZE * BLOCK_BYTES / room_ms


class Policy:
    """Chooses by the fold alone, and writes what came of it into the fold."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.ledger, (self.p0, _) = started("p0", "d0")
        self.count = 0

    def ask(self) -> tuple[float, float]:
        """One more request: what it cost by the truth, and what the better choice costs."""
        blocks = max(40, min(4_000, int(self.rng.lognormvariate(6.9, 0.8))))
        chosen = self.choose(blocks)
        return self.carry_out(chosen, blocks), self.best_ms(blocks)

    def best_ms(self, blocks: int) -> float:
        return min(self.world.move_ms(blocks), self.world.compute_ms(0, blocks * BLOCK_SIZE))

    def choose(self, blocks: int) -> Ranked:
        space = self.ledger.space
        target, node = self.ledger.node("p0"), self.ledger.node("d0")
        prefill = space.prefill.get("p0")
        (only,) = rank(
            [source_for(space, target, node, blocks=blocks)],
            block_size=BLOCK_SIZE,
            prefill=prefill,
            target="p0",
        )
        if only.worth or prefill is None:
            return only
        return trial([only], block_size=BLOCK_SIZE, prefill=prefill) or only

    def carry_out(self, chosen: Ranked, blocks: int) -> float:
        moved = chosen.limit or (blocks if chosen.worth else 0)
        self.count += 1
        request, transfer = f"r{self.count}", f"t{self.count}" if moved else ""
        asked = Requested(
            request=request,
            transfer=transfer,
            source="d0",
            wanted=blocks,
            granted=moved,
            miss="" if moved else "too_dear",
            predicted_ms=chosen.move_ms or 0.0,
            recompute_ms=chosen.recompute_ms or 0.0,
        )
        self.p0.write(asked)
        cost = self.world.compute_ms(moved * BLOCK_SIZE, blocks * BLOCK_SIZE)
        if moved:
            cost += self.world.move_ms(moved)
            self.p0.write(self.moved(request, transfer, moved))
        computed = blocks * BLOCK_SIZE - moved * BLOCK_SIZE
        # A tail that nobody held is computed in any case, and teaches what prefill takes.
        tail = 500
        end = moved * BLOCK_SIZE + computed + tail
        took = 8.0 + self.world.compute_ms(moved * BLOCK_SIZE, end)
        self.p0.write(
            RequestEnded(
                request=request,
                prompt_tokens=end,
                pulled_tokens=moved * BLOCK_SIZE,
                computed_tokens=computed + tail,
                prefill_ms=took * self.noise(),
                output_tokens=1,
            )
        )
        return cost

    def moved(self, request: str, transfer: str, blocks: int) -> Transferred:
        return Transferred(
            transfer=transfer,
            request=request,
            source="d0",
            start=0,
            count=blocks,
            tokens=blocks * BLOCK_SIZE,
            bytes=blocks * BLOCK_BYTES,
            backend="tcp",
            read_ms=self.world.move_ms(blocks) * self.noise(),
        )

    def noise(self) -> float:
        return self.rng.lognormvariate(0.0, self.world.noise)


class Lost(msgspec.Struct, kw_only=True):
    """What a change of a link cost, each as a share of the best possible cost of these requests."""

    before: float
    """Over 40 requests before it."""
    at_once: float
    """Over the 20 requests after it."""
    learned: float
    """Of that, all but what the first of them lost: it was the first to meet the change, and no
    choice made from the past could have spared it that."""
    next20: float
    """Over the 20 requests after those."""
    settled: float
    """Over the 20 after those again."""

    @property
    def first(self) -> float:
        """What the first request after the change lost, as a share of the best cost of the 20."""
        return self.at_once - self.learned


def regret(policy: Policy, requests: int) -> float:
    """Cost of the next requests beyond the best possible, as a share of it."""
    cost, best = costs(policy, requests)
    return (sum(cost) - sum(best)) / sum(best)


def costs(policy: Policy, requests: int) -> tuple[list[float], list[float]]:
    """What the next requests cost, and the least that they could have."""
    pairs = [policy.ask() for _ in range(requests)]
    return [cost for cost, _ in pairs], [best for _, best in pairs]


def after_change(before: float, factor: float, seed: int, noise: float = 0.15) -> Lost:
    """Run 100 requests, make the link ``factor`` times as fast, and run 60 more.

    Args:
        before: what moving takes at first, in units of computing, for a prompt of 16k tokens.
    """
    policy = Policy(World(bytes_per_ms=bytes_per_ms(before), noise=noise), seed)
    regret(policy, 60)
    steady = regret(policy, 40)
    policy.world.bytes_per_ms *= factor
    policy.world.floor_ms /= factor
    return _lost(policy, steady)


def first_met(ratio: float, seed: int, noise: float = 0.15) -> Lost:
    """Run 60 requests over a link of which nothing is known; nor is anything of computing.

    Args:
        ratio: what moving takes, in units of computing, for a prompt of 16k tokens.
    """
    return _lost(Policy(World(bytes_per_ms=bytes_per_ms(ratio), noise=noise), seed), 0.0)


def _lost(policy: Policy, steady: float) -> Lost:
    cost, best = costs(policy, 20)
    return Lost(
        before=steady,
        at_once=(sum(cost) - sum(best)) / sum(best),
        learned=(sum(cost[1:]) - sum(best[1:])) / sum(best),
        next20=regret(policy, 20),
        settled=regret(policy, 20),
    )
