"""Which tests stay together where workers share them, as in ``make test``.

A worker gets whole files, for what a module shares is made once there. Wider groups have a name:
what wants the one pair of engines, the one pool of TileRT nodes, those that keep what they
generate, and each kind of backend of the contract. Tests with real engines come first, for they
take longest and leave half a core idle; those that share TileRT's servers come last, for these
look for work without a pause until the last test has ended.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

# How long one example took says how busy the machine is, nothing about what it shows.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

SERVERS = ("parts", "benches")
"""Fixtures of the session that take a seventh of a core for each server as long as they stand."""
SHARED = ("pair", *SERVERS)
"""Fixtures of the session that are dear to make: their tests go to one worker."""


class FilesAndGroups(LoadGroupScheduling):
    """Gives a worker the tests of one named group, or else of one file."""

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


def pytest_configure() -> None:
    # A shell that starts the tests in the background has SIGINT ignored, and what is ignored stays
    # so in every command that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesAndGroups:
    return FilesAndGroups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sharing = {item.path: name for item in items for name in SHARED if name in wanted(item)}
    for item in items:
        if name := sharing.get(item.path) or backend_kind(item):
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """When a test is due among the others: 0 first."""
    if item.get_closest_marker("engine") is not None:
        return 0
    return 1 if set(wanted(item)).isdisjoint(SERVERS) else 2


def wanted(item: pytest.Item) -> list[str]:
    """The names of a test's fixtures."""
    return list(getattr(item, "fixturenames", ()))


def backend_kind(item: pytest.Item) -> str:
    """The kind of backend that a test of the contract is about; empty for other tests."""
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("kind") if callspec is not None else None
    return str(getattr(kind, "label", ""))
