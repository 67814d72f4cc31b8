"""Real engines on the ledger of a scenario; one that was killed can be started again."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from tests.chaos.netns import Namespace
from tests.e2e import conservation
from tests.e2e.conftest import KEY, joined, stop_all
from tests.e2e.engine import EngineProcess

PATIENCE: dict[str, Any] = {
    "key": KEY,
    "verify": "full",
    "plan_deadline_ms": 2_000,
    "pin_timeout_ms": 2_000,
    "pin_ms": 5_000,
    "transfer_timeout_ms": 10_000,
    "lease_ms": 5_000,
}
"""What a busy test machine takes long for must not look like a miss; what is lost ends soon."""


class Fleet:
    """p0 here and d0 in a namespace of its own, where there is one. A context manager."""

    def __init__(self, model: Path, url: str, folder: Path, apart: Namespace | None) -> None:
        self._model = model
        self._url = url
        self._folder = folder
        self._apart = apart
        self._made: list[EngineProcess] = []
        self._free: dict[str, int] = {}
        self.engines: dict[str, EngineProcess] = {}

    def __enter__(self) -> Fleet:
        try:
            for name in ("p0", "d0"):
                self.start(name)
            self.wait_joined()
        except BaseException:
            stop_all(self._made)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop_all(self._made)

    def start(self, name: str) -> None:
        """Start the engine of that name, also again."""
        options = PATIENCE | {"nats_url": self._url}
        log = self._folder / f"{name}.log"
        if self._apart is None:
            engine = EngineProcess(self._model, name, connector=options, log=log)
        elif name == "p0":
            options["host"] = self._apart.host
            engine = EngineProcess(self._model, name, connector=options, log=log)
        else:
            options["host"] = self._apart.inside
            engine = self._apart.run(
                lambda: EngineProcess(self._model, name, connector=options, log=log, fresh=True)
            )
        self._made.append(engine)
        self.engines[name] = engine
        self._free.pop(name, None)

    def wait_joined(self) -> None:
        """Wait until all are up and in the ledger."""
        joined(*self.engines.values())
        for name, engine in self.engines.items():
            if name not in self._free:
                self._free[name] = engine.ask("free_blocks")

    def blocks_return(self) -> None:
        """Assert that no engine keeps a block that nobody needs."""
        for name, engine in self.engines.items():
            conservation.blocks_return(engine, self._free[name])
