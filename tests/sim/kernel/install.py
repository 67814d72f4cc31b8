"""Puts the simulated clocks, threads, sockets and chance under the shipped modules."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from tests.sim.kernel import threads
from tests.sim.kernel.clocks import SimSecrets, SimTime
from tests.sim.kernel.loop import SimPolicy
from tests.sim.kernel.sockets import SimSelect, SimSocketModule

SHIPPED = ("kvferry", "kvferry_connectors")
EXPECTED = "joined later under the name"
"""What the older of two processes with one name says, as it should."""
SHIPPED_LOGS = ("kvferry", "asyncio")

_TIME = SimTime()
_STANDINS: list[tuple[object, object]] = [
    (time, _TIME),
    (threading, threads),
    (socket, SimSocketModule()),
    (select, SimSelect()),
    (secrets, SimSecrets()),
    (ThreadPoolExecutor, threads.Pool),
    (time.monotonic, _TIME.monotonic),
]


@contextmanager
def simulated() -> Iterator[None]:
    """Shipped modules that are loaded by now use the simulation's stand-ins."""
    undo: list[tuple[object, str, object]] = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            standin = _standin(value)
            if standin is not None:
                undo.append((module, name, value))
                setattr(module, name, standin)
        for function in _functions(module):
            _rebind_defaults(function, undo)
    policy = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(SimPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(policy)
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _standin(value: object) -> object | None:
    return next((new for real, new in _STANDINS if value is real), None)


def _modules() -> list[ModuleType]:
    names = sorted(n for n in sys.modules if n.split(".")[0] in SHIPPED)
    return [sys.modules[name] for name in names]


def _functions(module: ModuleType) -> list[FunctionType]:
    """The module's own functions and methods."""
    found: list[FunctionType] = []
    for value in list(vars(module).values()):
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            found.append(value)
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            found += [f for f in vars(value).values() if inspect.isfunction(f)]
    return found


def _rebind_defaults(function: FunctionType, undo: list[tuple[object, str, object]]) -> None:
    """A clock as a default argument was bound when the module was loaded."""
    if function.__defaults__:
        new = tuple(_standin(v) or v for v in function.__defaults__)
        if new != function.__defaults__:
            undo.append((function, "__defaults__", function.__defaults__))
            function.__defaults__ = new
    if function.__kwdefaults__:
        named = {k: _standin(v) or v for k, v in function.__kwdefaults__.items()}
        if named != function.__kwdefaults__:
            undo.append((function, "__kwdefaults__", function.__kwdefaults__))
            function.__kwdefaults__ = named


def hush() -> None:
    """For a process that only simulates: tasks of killed processes are cut off where they stand,
    and what they say then is no matter. What is said during a run goes to :class:`Errors`."""
    sys.unraisablehook = lambda what: None
    for name in SHIPPED_LOGS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class Errors(logging.Handler):
    """What shipped code logs as an error: it says that something happened which must not."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if EXPECTED in record.getMessage():
            return
        error: Any = record.exc_info[1] if record.exc_info else None
        self.found.append(record.getMessage() + (f": {error!r}" if error else ""))


def load_without_engine() -> None:
    """Let the connector be imported where vLLM is not: it only takes three base classes from it."""
    name = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    if name in sys.modules:
        return
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    base: Any = sys.modules[name]
    for word in (
        "KVConnectorHandshakeMetadata",
        "KVConnectorMetadata",
        "KVConnectorWorkerMetadata",
    ):
        setattr(base, word, type(word, (), {}))
