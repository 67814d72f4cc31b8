"""The data plane: copies tags between the memories of engines, over virtual time.

One-sided as remote memory access is: the source takes no part, so it cannot refuse, and a read
that is not ended goes on writing whatever its target's engine thinks of it. Or two-sided: the
source sends only what its own grant allows.
"""

from __future__ import annotations

import msgspec
from tests.sim.kernel.kernel import Process, Sleeper
from tests.sim.kernel.network import Network
from tests.sim.world.memory import Memory

from kvferry.node.export.grants import pack_blocks
from kvferry.ports.backend import Authorize, Capabilities, ReadOutcome, ReadRequest, Regions


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """How a plane behaves."""

    name: str
    one_sided: bool
    block_s: float
    fail_share: float
    """Share of reads that end with an error somewhere in the middle."""
    hang_share: float
    """Share of reads that stall for a long time at some block."""
    hang_s: float


class Planes:
    """All planes of a run by what they say of themselves, as a network would find them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.known: dict[bytes, Plane] = {}


class Plane:
    """A :class:`kvferry.ports.backend.Backend` of one engine."""

    def __init__(
        self, planes: Planes, process: Process, memory: Memory, life: str, traits: Traits
    ) -> None:
        self.name = traits.name
        self.traits = traits
        self.process, self.memory = process, memory
        self.capabilities = Capabilities(
            memory=frozenset({"host"}),
            one_sided=traits.one_sided,
            same_host_only=False,
            fence="copy_stopped",
        )
        self.planes = planes
        self.authorize: Authorize | None = None
        self._said = f"{traits.name}/{life}".encode()
        self._posted: list[_Copy] = []

    def register(self, regions: Regions | None, authorize: Authorize) -> None:
        self.authorize = authorize
        self.planes.known[self._said] = self

    def describe(self) -> bytes:
        return self._said

    def post(self, request: ReadRequest) -> _Copy:
        copy = _Copy(self, request)
        self._posted.append(copy)
        return copy

    def forget(self, peer: bytes) -> None:
        return

    def close(self) -> None:
        for copy in self._posted:
            copy.abort()
        self.planes.known.pop(self._said, None)


class _Copy:
    """A read under way."""

    def __init__(self, plane: Plane, request: ReadRequest) -> None:
        self._plane, self._request = plane, request
        self._kernel = plane.process.kernel
        self._source = plane.planes.known.get(request.peer)
        self._outcome: ReadOutcome | None = None
        self._stopped = False
        self._waiting: list[Sleeper] = []
        self._at = 0
        rng, count = plane.planes.network.rng, len(request.source_blocks)
        traits = plane.traits
        self._fails_at = rng.randrange(count) if rng.random() < traits.fail_share else -1
        self._hangs_at = rng.randrange(count) if rng.random() < traits.hang_share else -1
        self._kernel.after(plane.planes.network.delay_s(), self._next)

    def poll(self) -> ReadOutcome | None:
        return self._outcome

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        by_s = self._kernel.now_s + timeout_s
        while self._outcome is None and self._kernel.now_s < by_s:
            self._waiting.append(self._kernel.current_thread())
            self._kernel.park(by_s - self._kernel.now_s, "read")
            self._waiting.clear()
        return self._outcome

    def abort(self) -> ReadOutcome:
        self._stopped = True
        return self._outcome or ReadOutcome(error="aborted")

    def _next(self) -> None:
        """Copy one block, if everything that it takes is there, and come again for the next."""
        plane, source = self._plane, self._source
        if self._stopped or self._outcome is not None or not plane.process.alive:
            return
        if source is None or not source.process.alive:
            self._end(ReadOutcome(error="unreachable", detail="the source is gone"))
            return
        until_s = plane.planes.network.parted_until(plane.process.name, source.process.name)
        # Its own processor posts or copies block by block; the source's takes no part.
        until_s = max(until_s, plane.process.frozen_until_s)
        if not plane.traits.one_sided:
            until_s = max(until_s, source.process.frozen_until_s)
        if until_s > self._kernel.now_s:
            self._kernel.at(until_s + plane.traits.block_s, self._next)
            return
        if self._at == self._hangs_at:
            self._hangs_at = -1
            self._kernel.after(plane.traits.hang_s, self._next)
            return
        if self._at == self._fails_at:
            self._end(ReadOutcome(error="error", detail="the copy broke"))
            return
        if not plane.traits.one_sided and not self._allowed(source):
            self._end(ReadOutcome(error="refused", detail="no grant for these blocks"))
            return
        block, target = self._request.source_blocks[self._at], self._request.target_blocks[self._at]
        plane.memory.arrive(target, source.memory.tags[block], self._request.transfer)
        self._at += 1
        if self._at == len(self._request.source_blocks):
            self._end(ReadOutcome(bytes=self._at))
        else:
            self._kernel.after(plane.traits.block_s, self._next)

    def _allowed(self, source: Plane) -> bool:
        assert source.authorize is not None
        request = self._request
        return source.authorize(request.transfer, request.grant, pack_blocks(request.source_blocks))

    def _end(self, outcome: ReadOutcome) -> None:
        self._outcome = outcome
        for one in self._waiting:
            self._kernel.wake(one)
