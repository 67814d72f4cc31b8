"""Direct or packed: what is asked for, what is free, and what has been faster."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pytest
from tests.contract.kinds import Kind
from tests.contract.pools import Pool, pattern
from tests.contract.reading import finished, post
from tests.unit.nixl.conftest import Make

from kvferry.errors import BackendError
from kvferry_backends.nixl.backend import NixlBackend
from kvferry_backends.nixl.cost import Costs
from kvferry_backends.nixl.library import find
from kvferry_backends.nixl.links import IDLE_MAX

BLOCKS = 256
WIDTHS = [4096, 4096]


def pools() -> tuple[Pool, Pool]:
    source, target = Pool(BLOCKS, WIDTHS), Pool(BLOCKS, WIDTHS)
    source.fill("mode")
    return source, target


def read_all(target: NixlBackend, source: NixlBackend, pool: Pool, seed: int) -> None:
    """Read 200 scattered blocks and compare them."""
    sources = random.Random(seed).sample(range(BLOCKS), 200)
    targets = random.Random(seed + 1).sample(range(BLOCKS), 200)
    outcome = finished(post(target, source.describe(), sources, targets))
    assert outcome.error == "", outcome
    assert outcome.bytes == 200 * sum(WIDTHS)
    for s, t in zip(sources, targets, strict=True):
        assert pool.get(t) == pattern("mode", s, sum(WIDTHS))
    assert pool.get(targets[0]) != pattern("mode", sources[1], sum(WIDTHS))


def warm(target: NixlBackend, source: NixlBackend) -> None:
    """The first read, of which nothing is learned."""
    assert finished(post(target, source.describe(), [0], [0])).error == ""
    assert (costs(target).direct_reads, costs(target).packed_reads) == (0, 0)


def costs(target: NixlBackend) -> Costs:
    assert target._links is not None
    return next(iter(target._links._known.values())).costs


def test_what_is_asked_for_is_done(kind: Kind, make: Make) -> None:
    source_pool, target_pool = pools()
    source = make(source_pool)
    direct, packed = make(target_pool, mode="direct"), make(Pool(BLOCKS, WIDTHS), mode="packed")
    warm(direct, source)
    warm(packed, source)
    read_all(direct, source, target_pool, 1)
    assert (costs(direct).direct_reads, costs(direct).packed_reads) == (1, 0)
    finished(post(packed, source.describe(), range(BLOCKS), range(BLOCKS)))
    assert (costs(packed).direct_reads, costs(packed).packed_reads) == (0, 1)


def test_auto_tries_both_and_goes_on_with_the_faster(kind: Kind, make: Make) -> None:
    source_pool, target_pool = pools()
    source, target = make(source_pool), make(target_pool)
    warm(target, source)
    for seed in range(6):
        read_all(target, source, target_pool, seed)
    learned = costs(target)
    assert learned.direct_reads >= 1
    assert learned.packed_reads >= 1
    assert learned.direct_reads + learned.packed_reads == 6


@pytest.mark.parametrize("side", ["source", "target"])
def test_where_no_ring_is_free_a_read_is_direct(kind: Kind, make: Make, side: str) -> None:
    source_pool, target_pool = pools()
    source = make(source_pool, rings=1)
    target = make(target_pool, rings=1, mode="packed")
    busy = source if side == "source" else target
    warm(target, source)
    assert busy._pool is not None
    assert busy._pool.rings is not None
    loan = busy._pool.rings.take()
    assert loan is not None
    read_all(target, source, target_pool, 3)
    assert (costs(target).direct_reads, costs(target).packed_reads) == (1, 0)
    loan.give_back()
    read_all(target, source, target_pool, 5)
    assert (costs(target).direct_reads, costs(target).packed_reads) == (1, 1)
    for backend in (source, target):
        assert backend._pool is not None
        assert backend._pool.rings is not None
        free = backend._pool.rings.take()
        assert free is not None
        free.give_back()


def test_blocks_larger_than_a_slot_are_read_directly(kind: Kind, make: Make) -> None:
    widths = [100_000, 100_000]
    source_pool, target_pool = Pool(8, widths), Pool(8, widths)
    source_pool.fill("large")
    source = make(source_pool, slot_bytes=65536)
    target = make(target_pool, mode="packed")
    warm(target, source)
    assert finished(post(target, source.describe(), [3, 1], [0, 7])).error == ""
    assert target_pool.get(7) == pattern("large", 1, 200_000)
    assert costs(target).direct_reads == 1


def test_variables_are_set_only_while_an_agent_is_made(
    kind: Kind, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TCP_TX_SEG_SIZE", "8k")
    monkeypatch.delenv("UCX_TCP_RX_SEG_SIZE", raising=False)
    variables = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}
    make(Pool(2, [64]), environment=variables)
    assert os.environ["UCX_TCP_TX_SEG_SIZE"] == "8k"
    assert "UCX_TCP_RX_SEG_SIZE" not in os.environ


@pytest.mark.parametrize(
    ("process", "options", "told"),
    [(None, {}, "n"), ("y", {}, "y"), ("n", {"UCX_CUDA_IPC_CACHE": "y"}, "y")],
)
def test_ucx_keeps_no_killed_peers_memory_mapped_unless_told_to(
    kind: Kind,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    process: str | None,
    options: dict[str, str],
    told: str,
) -> None:
    if process is None:
        monkeypatch.delenv("UCX_CUDA_IPC_CACHE", raising=False)
    else:
        monkeypatch.setenv("UCX_CUDA_IPC_CACHE", process)
    library, heard = find(), list[str | None]()
    agent = library.agent

    def told_agent(*args: Any) -> Any:
        heard.append(os.environ.get("UCX_CUDA_IPC_CACHE"))
        return agent(*args)

    monkeypatch.setattr(library, "agent", told_agent)
    make(Pool(2, [64]), environment=options)
    assert set(heard) == {told}
    assert os.environ.get("UCX_CUDA_IPC_CACHE") == process


def test_agents_of_peers_long_unread_are_ended(
    kind: Kind, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry_backends.nixl.links.IDLE_MAX", 2)
    assert IDLE_MAX > 2
    target = make(Pool(4, [64]))
    sources = [make(Pool(4, [64])) for _ in range(4)]
    for source in (*sources, sources[0]):
        assert finished(post(target, source.describe(), [1], [2])).error == ""
    assert target._links is not None
    known = target._links._known
    assert list(known) == [sources[3]._instance, sources[0]._instance]
    assert all(one.link is not None for one in known.values())


def test_a_peer_of_another_host_without_rdma_is_refused_when_posted(kind: Kind, make: Make) -> None:
    source, target = make(Pool(2, [64])), make(Pool(2, [64]))
    target._host, target._rdma = "another", False
    with pytest.raises(BackendError, match="use backend tcp"):
        post(target, source.describe(), [0], [1])


@pytest.mark.parametrize("mode", ["direct", "packed"])
def test_a_grant_that_ends_in_mid_read_ends_the_read(
    kind: Kind, make: Make, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("kvferry_backends.nixl.serving.PERMIT_EVERY_S", 0.0)
    left = threading.Semaphore(2)

    def twice(transfer: str, grant: bytes, packed: bytes) -> bool:
        return left.acquire(blocking=False)

    blocks = 2048
    pool = Pool(blocks, [65536])
    source = make(Pool(blocks, [65536]), twice, slot_bytes=65536)
    target = make(pool, mode=mode, slot_bytes=65536)
    outcome = finished(post(target, source.describe(), range(blocks), range(blocks)))
    assert outcome.error == "refused"
    assert "grant" in outcome.detail
