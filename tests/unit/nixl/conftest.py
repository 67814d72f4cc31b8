"""The nixl kind of the contract, and processes of sources that a test may freeze."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.contract.kinds import KINDS, Kind
from tests.contract.permits import allow
from tests.contract.pools import Pool
from tests.contract.sources import SourceProcess

from kvferry.ports.backend import Authorize
from kvferry_backends.nixl.backend import NixlBackend

NIXL = next(kind for kind in KINDS if kind.name == "nixl")

Make = Callable[..., NixlBackend]


@pytest.fixture
def kind() -> Kind:
    if NIXL.why_not:
        pytest.skip(NIXL.why_not)
    return NIXL


@pytest.fixture
def make(kind: Kind) -> Iterator[Make]:
    """Make a nixl backend over a pool; all are closed."""
    made: list[NixlBackend] = []

    def one(pool: Pool, authorize: Authorize = allow, **options: object) -> NixlBackend:
        backend = NixlBackend({"devices": ["lo"], **options})
        made.append(backend)
        backend.register(pool.regions, authorize)
        return backend

    yield one
    for backend in made:
        backend.close()


@pytest.fixture
def process(kind: Kind) -> Iterator[SourceProcess]:
    found = SourceProcess(kind)
    yield found
    found.close()
