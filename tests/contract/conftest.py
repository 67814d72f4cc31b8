"""Fixtures of the contract suite: backends that are closed, and nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.contract.kinds import KINDS, Kind
from tests.contract.peers import PeerProcess
from tests.contract.pools import Pool

from kvferry.ports.backend import Authorize, Backend

Serve = Callable[..., Backend]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join([kind.name, *map(str, kind.options)]))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


def deny(transfer: str, grant: bytes, packed: bytes) -> bool:
    return False


@pytest.fixture
def serve(kind: Kind) -> Iterator[Serve]:
    """Make a backend over a pool; all are closed, and must leave no thread or descriptor."""
    threads = set(threading.enumerate())
    descriptors = set(os.listdir("/proc/self/fd"))
    made: list[Backend] = []

    def make(pool: Pool, authorize: Authorize = allow, **options: object) -> Backend:
        backend = kind.make(**options)
        made.append(backend)
        backend.register(pool.regions, authorize)
        return backend

    yield make
    for backend in made:
        backend.close()
    assert set(threading.enumerate()) <= threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
def start_peer(kind: Kind) -> Iterator[Callable[[int, Sequence[int], str], PeerProcess]]:
    made: list[PeerProcess] = []

    def start(blocks: int, widths: Sequence[int], seed: str) -> PeerProcess:
        made.append(PeerProcess(kind, blocks, widths, seed))
        return made[-1]

    yield start
    for peer in made:
        peer.close()
