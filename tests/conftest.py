"""Which tests stay together where workers share them, as in ``make test``.

A worker gets whole files, for what a module shares is made once there. Wider groups have a name:
each kind of backend of the contract, and what wants the one pool of TileRT nodes. Tests with
real vLLM engines are one group, the last: engines side by side starve each other.
"""

from __future__ import annotations

import signal

import pytest
from xdist.scheduler import LoadGroupScheduling

ENGINES = "engines"
POOL = "tilert-pool"


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
    for item in items:
        if name := group(item):
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: group(item) == ENGINES)


def group(item: pytest.Item) -> str:
    """The named group of a test; empty where its file is its group."""
    if item.get_closest_marker("engine"):
        return ENGINES
    if "parts" in getattr(item, "fixturenames", ()):
        return POOL
    kind = getattr(item, "callspec", None) and item.callspec.params.get("kind")
    return str(getattr(kind, "label", ""))
