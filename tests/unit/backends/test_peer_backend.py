"""The CUDA peer backend around a stand-in for its GPU: what it moves, refuses, fences, unmaps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.backends.peer_fakes import FakeDevice

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import Posted, ReadRequest, Regions
from kvferry_backends.identity import Identity, own_identity
from kvferry_backends.peer import reading
from kvferry_backends.peer.backend import PeerBackend
from kvferry_backends.peer.wire import decode

WAIT_S = 20.0
WIDTHS = (4096, 640)


def as_cuda(pool: Pool) -> Regions:
    return msgspec.structs.replace(pool.regions, kind="cuda")


class Node:
    """A backend over a pool in host memory that it takes for its GPU's."""

    def __init__(self, blocks: int = 16) -> None:
        self.pool = Pool(blocks, WIDTHS)
        self.backend = PeerBackend({}, make_device=self._make)
        self.backend.register(as_cuda(self.pool), lambda transfer, grant, packed: True)

    def _make(self, regions: Regions, process: Identity, instance: str) -> FakeDevice:
        self.device = FakeDevice(regions, process, instance)
        return self.device

    def post(self, peer: bytes, sources: list[int], targets: list[int]) -> Posted:
        return self.backend.post(
            ReadRequest(
                transfer="t.1",
                peer=peer,
                grant=b"",
                source_blocks=sources,
                target_blocks=targets,
            )
        )


@pytest.fixture
def source() -> Iterator[Node]:
    node = Node()
    node.pool.fill("source")
    yield node
    node.backend.close()


@pytest.fixture
def target() -> Iterator[Node]:
    before = set(threading.enumerate())
    node = Node()
    yield node
    node.device.running = False
    node.backend.close()
    assert set(threading.enumerate()) <= before


def other_process(peer: bytes) -> bytes:
    """The description as a process of another pid namespace would have written it."""
    found = decode(peer)
    process = msgspec.structs.replace(found.process, namespace="pid:[1]")
    return msgspec.msgpack.encode(msgspec.structs.replace(found, process=process))


def test_blocks_arrive_once_the_kernel_has_run(source: Node, target: Node) -> None:
    target.device.running = True
    posted = target.post(source.backend.describe(), [3, 5], [9, 0])
    assert posted.poll() is None
    assert posted.wait(0.01) is None
    assert target.pool.get(9) != pattern("source", 3, 4736)
    target.device.running = False
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert (outcome.error, outcome.bytes) == ("", 2 * 4736)
    assert target.pool.get(9) == pattern("source", 3, 4736)
    assert target.pool.get(0) == pattern("source", 5, 4736)
    assert posted.abort() == outcome


def test_an_abort_is_fenced_by_the_kernels_end(source: Node, target: Node) -> None:
    target.device.running = True
    posted = target.post(source.backend.describe(), [3], [9])
    threading.Timer(0.1, lambda: setattr(target.device, "running", False)).start()
    outcome = posted.abort()
    assert (outcome.error, outcome.bytes) == ("aborted", 0)


def test_a_kernel_that_does_not_end_keeps_the_blocks_in_quarantine(
    source: Node, target: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FENCE_S", 0.05)
    target.device.running = True
    peer = other_process(source.backend.describe())
    posted = target.post(peer, [3], [9])
    with pytest.raises(BackendError, match="quarantine"):
        posted.abort()
    with pytest.raises(BackendError, match="quarantine"):
        target.backend.close()
    # What a kernel may still read is not unmapped under it.
    assert target.device.driver.mapped
    target.device.running = False
    assert posted.wait(WAIT_S) is not None
    assert not target.device.driver.mapped


def test_a_lost_context_is_an_error_and_not_an_arrival(source: Node, target: Node) -> None:
    target.device.running = True
    posted = target.post(source.backend.describe(), [3], [9])
    target.device.lost = True
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "error"
    assert "illegal memory access" in outcome.detail


def test_forgotten_it_is_unmapped_and_reads_under_way_end_unreachable(
    source: Node, target: Node
) -> None:
    peer = other_process(source.backend.describe())
    first = target.post(peer, [1], [1])
    assert first.wait(WAIT_S) is not None
    mapped = target.device.driver.mapped
    assert mapped
    target.device.running = True
    posted = target.post(peer, [3], [9])
    target.backend.forget(b"no description")
    target.backend.forget(target.backend.describe())
    target.backend.forget(peer)
    assert mapped, "unmapped under a kernel"
    target.device.running = False
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "unreachable"
    assert "has ended" in outcome.detail
    assert not mapped
    # And where it does live, the next read maps it again.
    again = target.post(peer, [3], [9]).wait(WAIT_S)
    assert again is not None
    assert again.error == ""
    assert mapped


def test_a_launch_that_fails_leaves_no_reader_behind(source: Node, target: Node) -> None:
    peer = other_process(source.backend.describe())
    target.device.refuses_launch = True
    with pytest.raises(BackendError, match=r"cannot be started.*out of memory"):
        target.post(peer, [3], [9])
    target.backend.forget(peer)
    assert not target.device.driver.mapped


def test_requests_that_fit_nobody_are_refused(source: Node, target: Node) -> None:
    peer = source.backend.describe()
    for sources, targets in (([16], [0]), ([0], [16]), ([0], [0, 1]), ([], []), ([1, 2], [3, 3])):
        with pytest.raises(BackendError):
            target.post(peer, sources, targets)
    dead = msgspec.structs.replace(own_identity(), started=1)
    found = msgspec.structs.replace(decode(peer), process=dead)
    with pytest.raises(BackendError, match="has ended"):
        target.post(msgspec.msgpack.encode(found), [0], [0])
    with pytest.raises(BackendError, match="description"):
        target.post(b"no description", [0], [0])


def test_it_has_one_pool_and_nothing_before_and_after(source: Node) -> None:
    allow = lambda transfer, grant, packed: True  # noqa: E731
    with pytest.raises(BackendError, match="has its regions"):
        source.backend.register(as_cuda(source.pool), allow)
    fresh = PeerBackend({}, make_device=FakeDevice)
    with pytest.raises(BackendError, match="register first"):
        fresh.describe()
    with pytest.raises(BackendError, match="regions are host"):
        fresh.register(source.pool.regions, allow)
    fresh.close()
    fresh.close()
    with pytest.raises(BackendError, match="closed"):
        fresh.register(as_cuda(source.pool), allow)


def test_without_a_gpu_it_is_unavailable_and_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="threads"):
        PeerBackend({"threads": 3})
    try:
        import torch
        import triton  # noqa: F401

        has_gpu = torch.cuda.is_available()
    except ImportError:
        has_gpu = False
    if has_gpu:
        PeerBackend({}).close()
    else:
        with pytest.raises(BackendUnavailable, match="backend peer needs"):
            PeerBackend({})
