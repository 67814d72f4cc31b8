"""Shared models, ledgers and engines of the end-to-end tests."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, Recorded, of

from kvferry.core.events import Requested
from kvferry_connectors.demo.model import TINY, Shape, ensure_model

KEY = "hex:" + "5a" * 32
"""The cluster key of the tests' engines."""
BLOCK = 32
"""Tokens in a block of the tests' engines, where a test says nothing else."""

POKE_EVERY_S = 0.1
"""What is waited for, as a lease's end, takes seconds; each poke is a request in the ledger."""

pytestmark = pytest.mark.engine


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids that look like nothing else in the test."""
    draw = random.Random(seed)
    return [draw.randrange(10, 500) for _ in range(tokens)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with saved random weights."""
    return ensure_model(tmp_path_factory.mktemp("model") / "tiny", TINY)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    return ensure_model(tmp_path_factory.mktemp("model") / "tiny", Shape(seed=7))


StartEngine = Callable[..., EngineProcess]


def engine_starter(model: Path, url: str, made: list[EngineProcess]) -> StartEngine:
    """A function that starts an engine on a ledger and remembers to stop it."""

    def start(name: str, *, connector: dict[str, Any] | None = None, **args: Any) -> EngineProcess:
        # Patient: what a loaded test machine takes long for must not look like a miss.
        options = {
            "nats_url": url,
            "key": KEY,
            "verify": "full",
            "plan_deadline_ms": 15_000,
            "pin_timeout_ms": 15_000,
            **(connector or {}),
        }
        made.append(EngineProcess(args.pop("model", model), name, connector=options, **args))
        return made[-1]

    return start


def stop_all(engines: list[EngineProcess]) -> None:
    """Stop these engines, all at the same time."""
    for engine in engines:
        engine.ask_to_stop()
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="session")
def reference(model: Path) -> Iterator[EngineProcess]:
    """One engine without kvferry: what every answer must equal."""
    engine = EngineProcess(model, "reference", connector=None)
    try:
        yield engine.wait_ready()
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A ledger and a coordinator for one test module."""
    made = Plane(tmp_path_factory.mktemp("plane"))
    try:
        made.start_coordinator()
        yield made
    finally:
        made.stop()


class Pair:
    """A prefill and a decode engine with a ledger of their own, for tests that leave no trace."""

    def __init__(self, plane: Plane, p0: EngineProcess, d0: EngineProcess) -> None:
        self.plane, self.p0, self.d0 = plane, p0, d0


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Pair]:
    """Two engines with the default options of these tests."""
    plane, made = Plane(tmp_path_factory.mktemp("pair")), list[EngineProcess]()
    try:
        plane.start_coordinator()
        start = engine_starter(model, plane.url, made)
        both = Pair(plane, start("p0"), start("d0"))
        joined(both.p0, both.d0)
        yield both
    finally:
        stop_all(made)
        plane.stop()


@pytest.fixture(scope="module")
def start_engine(plane: Plane, model: Path) -> Iterator[StartEngine]:
    """Start engines that live as long as the module."""
    made: list[EngineProcess] = []
    try:
        yield engine_starter(model, plane.url, made)
    finally:
        stop_all(made)


def joined(*engines: EngineProcess) -> None:
    """Wait until the engines are up, in the ledger, and can ask for plans."""
    for engine in engines:
        engine.wait_ready()
    for engine in engines:
        engine.until("joined", bool)
        engine.until("plans", bool)


def outlasting(
    pair: Pair, engine: EngineProcess, name: str, text: list[int], tokens: int, **kvferry: Any
) -> tuple[Requested, Answer]:
    """Have an engine answer a prompt, and stand still after its first token until the ledger has
    what came of the plan: nobody waits for one that is only observed."""

    def wanted(seen: list[Recorded]) -> list[Requested]:
        return [e for e in of(seen, Requested) if e.request.startswith(name)]

    engine.ask("hold_at", len(text) + 1)
    engine.add(name, text, tokens=tokens, kvferry=kvferry or None)
    engine.until("held", bool)
    (event,) = wanted(pair.plane.wait_for(wanted, f"what {name} wanted"))
    engine.hold(False)
    return event, engine.answer(name)


def free_again(engine: EngineProcess, wanted: int, timeout_s: float = 60.0) -> None:
    """Wait until ``wanted`` blocks are free; small requests wake the engine, which frees nothing
    before its next step."""
    deadline = time.monotonic() + timeout_s
    for seed in itertools.count(900_000):
        if engine.ask("free_blocks") == wanted:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{engine.name}: {engine.ask('free_blocks')} of {wanted} are free")
        engine.run(f"poke-{seed}", prompt(seed, 5), tokens=2)
        time.sleep(POKE_EVERY_S)
