"""Fixtures of the contract suite: backends that are closed, and nothing left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from tests.contract.kinds import USABLE, Kind
from tests.contract.permits import allow
from tests.contract.pools import Pool
from tests.contract.sources import SourceProcess
from tests.leftovers import nothing_stays_open

from kvferry.ports.backend import Authorize, Backend
from kvferry_backends.control import calls
from kvferry_backends.tcp import fetching

CONNECT_S = 30.0
Serve = Callable[..., Backend]
Start = Callable[[], SourceProcess]


@pytest.fixture(scope="session", params=USABLE, ids=lambda kind: kind.label)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each backend under the contract that works on this machine."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="session")
def processes() -> Iterator[dict[str, SourceProcess]]:
    """At most one process of sources, by the label of its kind.

    Modules have a ``kind`` of their own, and tests of one kind come from several: what was made for
    one must not be taken for another, whatever the order.
    """
    made: dict[str, SourceProcess] = {}
    yield made
    for process in made.values():
        process.close()


@pytest.fixture(autouse=True)
def patient_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that a busy machine does not run for a while is not taken for one that is gone."""
    for module in (calls, fetching):
        monkeypatch.setattr(module, "CONNECT_S", CONNECT_S)


@pytest.fixture
def sources(kind: Kind, processes: dict[str, SourceProcess]) -> SourceProcess:
    """One process of sources for all tests of a kind that neither stop nor kill it."""
    if kind.label not in processes:
        while processes:
            processes.popitem()[1].close()
        processes[kind.label] = SourceProcess(kind)
    return processes[kind.label]


@pytest.fixture
def serve(kind: Kind, request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Make a backend over a pool; all are closed, and must leave no thread or descriptor."""
    if "sources" in request.fixturenames:
        request.getfixturevalue("sources")  # So that its pipes are not taken for the backend's.
    made: list[Backend] = []

    def make(pool: Pool, authorize: Authorize = allow, **options: object) -> Backend:
        backend = kind.make(**options)
        made.append(backend)
        backend.register(pool.regions, authorize)
        return backend

    with contextlib.nullcontext() if kind.keeps_process_wide else nothing_stays_open():
        yield make
        for backend in made:
            backend.close()


@pytest.fixture
def start(kind: Kind) -> Iterator[Start]:
    """Start a process of sources that a test may freeze or kill."""
    made: list[SourceProcess] = []

    def one() -> SourceProcess:
        made.append(SourceProcess(kind))
        return made[-1]

    yield one
    for process in made:
        process.close()
