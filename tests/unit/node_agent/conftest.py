"""Fixtures: a real nats-server, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.node_agent.support import wait_until

from kvferry.ledger.embedded import EmbeddedServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A nats-server that comes back on the same port when it is killed."""
    with EmbeddedServer(tmp_path / "store") as running:
        yield running


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails when a thread or a file descriptor outlives the test."""
    gc.collect()
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: not set(threading.enumerate()) - threads, "every thread ended")
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files, "every file was closed")
