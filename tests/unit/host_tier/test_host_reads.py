"""A peer reads a chain that lies in both of a source's tiers, over every data plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.peers.puller_bench import Bench
from tests.unit.peers.support import eventually

from kvferry.errors import BackendUnavailable
from kvferry.node.export.grants import verify_grant, verify_host_grant
from kvferry.node.export.table import RankEndpoint
from kvferry.node.pull.jobs import PullResult
from kvferry.node.pull.puller import Puller
from kvferry.ports.backend import Backend, Verify
from kvferry_backends import registry
from kvferry_backends.host_tier.memory import make_pool
from kvferry_backends.host_tier.mover import make_mover

BLOCKS, WIDTHS = 64, [2048, 1024]
SIZE = sum(WIDTHS)
SLOTS = 40


class Pair:
    """A source with a cache and a host tier, and a target."""

    def __init__(self, name: str) -> None:
        self.bench = Bench()
        self.cache, self.target = Pool(BLOCKS, WIDTHS), Pool(BLOCKS, WIDTHS)
        self.cache.fill("kept")
        self.tier = make_pool(self.cache.regions, SLOTS)
        self.mover = make_mover(self.cache.regions, self.tier)
        key = self.bench.source.keys[0]
        self.backends: list[Backend] = [registry.create(name) for _ in range(3)]
        serves, lends, reads = self.backends
        serves.register(self.cache.regions, lambda t, g, b: verify_grant(key, t, g, b))
        lends.register(self.tier, lambda t, g, b: verify_host_grant(key, t, g, b, BLOCKS))
        reads.register(self.target.regions, lambda t, g, b: False)
        self.table = self.bench.source.table
        self.table.set_host(BLOCKS)
        described = {name: serves.describe()}
        self.table.set_ranks([RankEndpoint(key, described, {name: lends.describe()})])
        self.puller = Puller(self.bench.client, [reads], block_bytes=SIZE)

    def lend(self, hashes: tuple[bytes, ...], blocks: list[int], slots: list[int]) -> None:
        """Copy blocks to the host tier and offer them from there alone."""
        self.mover.to_host(blocks, slots)
        self.table.offer_host(hashes, [BLOCKS + slot for slot in slots])
        for block in blocks:
            self.table.reused(block)

    def pull(self, hashes: tuple[bytes, ...]) -> PullResult:
        targets = tuple(range(30, 30 + len(hashes)))
        self.puller.submit(self.bench.job("t", hashes, target_blocks=targets, verify=Verify.FULL))
        found: list[PullResult] = []
        assert eventually(lambda: bool(found.extend(self.puller.take()) or found))
        return found[0]

    def wrong(self, count: int, seed: str = "kept") -> int:
        return sum(self.target.get(30 + at) != pattern(seed, at, SIZE) for at in range(count))

    def close(self) -> None:
        self.puller.close()
        for backend in self.backends:
            backend.close()
        self.bench.close()


@pytest.fixture(params=["peer_host", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    try:
        made = Pair(request.param)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_chain_in_both_tiers_arrives_whole(pair: Pair) -> None:
    hashes = pair.bench.source.offer("a", 20)
    pair.lend(hashes[4:9], list(range(4, 9)), [30, 7, 8, 9, 3])
    pair.lend(hashes[15:], list(range(15, 20)), [0, 1, 2, 39, 20])
    pair.cache.put(5, bytes(SIZE))  # The cache has made something else of it.
    result = pair.pull(hashes)
    assert result.ok, result.detail
    assert (result.count, result.host_blocks, result.bytes) == (20, 10, 20 * SIZE)
    assert pair.wrong(20) == 0
    assert pair.wrong(20, seed="another") == 20


def test_a_slot_that_is_given_up_meanwhile_is_not_used(pair: Pair) -> None:
    hashes = pair.bench.source.offer("a", 6)
    pair.lend(hashes, list(range(6)), list(range(6)))
    settle = pair.table.done

    def late(target: str, frame: object) -> object:
        pair.table.reused(BLOCKS + 3)
        return settle(target, frame)  # type: ignore[arg-type]

    pair.table.done = late  # type: ignore[assignment, method-assign]
    result = pair.pull(hashes)
    assert (result.ok, result.stage, result.reason) == (False, "settle", "void")


def test_a_target_that_cannot_read_host_memory_gets_what_the_cache_has(pair: Pair) -> None:
    hashes = pair.bench.source.offer("a", 10)
    pair.lend(hashes[6:], list(range(6, 10)), [4, 5, 6, 7])
    (reads,) = pair.puller._links.backends
    blind = type("Blind", (), {"memory": frozenset({"cuda"})})
    reads.capabilities = blind()
    result = pair.pull(hashes)
    assert result.ok, result.detail
    assert (result.count, result.host_blocks) == (6, 0)
    assert result.failed_blocks == (36, 37, 38, 39)
