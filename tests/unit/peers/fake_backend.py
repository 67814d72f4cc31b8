"""A fake data plane for tests of the puller: it copies between two lists in this process.

It is no backend that anybody could use; real ones are tested by the contract suite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize, Capabilities, ReadOutcome, ReadRequest, Regions


class FakeBackend:
    """Reads ``memory[source block]`` into ``pool[target block]`` once ``gate`` is set."""

    capabilities = Capabilities(
        memory=frozenset({"host"}),
        one_sided=True,
        same_host_only=True,
        fence="fake_fence",
    )

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.read: Callable[[int], bytes] = lambda block: b"kv%d" % block
        self.pool: dict[int, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.posted = threading.Event()
        self.requests: list[ReadRequest] = []
        self.aborts = 0
        self.closed = 0
        self.forgotten: list[bytes] = []
        self.outcome = ReadOutcome()
        self.refuse_post = ""
        self.break_wait = False
        self.break_abort = False

    def register(self, regions: Regions, authorize: Authorize) -> None:
        raise BackendError("the fake serves nothing")

    def describe(self) -> bytes:
        return b""

    def post(self, request: ReadRequest) -> FakePosted:
        if self.refuse_post:
            raise BackendError(self.refuse_post)
        self.requests.append(request)
        self.posted.set()
        return FakePosted(self, request)

    def forget(self, peer: bytes) -> None:
        self.forgotten.append(peer)

    def close(self) -> None:
        self.closed += 1


class FakePosted:
    def __init__(self, backend: FakeBackend, request: ReadRequest) -> None:
        self._backend = backend
        self._request = request
        self._ended = False

    def poll(self) -> ReadOutcome | None:
        return self.wait(0)

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        backend, request = self._backend, self._request
        if backend.break_wait:
            raise ZeroDivisionError("a defect")
        if not backend.gate.wait(timeout_s):
            return None
        if backend.outcome.error:
            return backend.outcome
        for block, target in zip(request.source_blocks, request.target_blocks, strict=True):
            backend.pool[target] = backend.read(block)
        self._ended = True
        count = len(request.source_blocks)
        return ReadOutcome(bytes=3 * count, verified_blocks=count, read_ms=1.0)

    def abort(self) -> ReadOutcome:
        if self._backend.break_abort:
            raise ZeroDivisionError("a defect")
        self._backend.aborts += 1
        return ReadOutcome(error="aborted")
