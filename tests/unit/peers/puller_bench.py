"""A source that serves over real sockets and a target that pulls, with a fake data plane."""

from __future__ import annotations

from typing import Any

from tests.unit.peers.fake_backend import FakeBackend
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    ManualClock,
    Source,
    eventually,
    identity,
)

from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.server import PeerServer
from kvferry.node.pull.puller import Puller, PullJob, PullResult
from kvferry.ports.backend import Verify

PATIENT: dict[str, Any] = {"pin_ms": 60_000, "call_timeout_s": BOUND_S}
"""Bounds of a puller that no stall of a busy machine exceeds."""


class Bench:
    """A source that serves, and a target's puller."""

    def __init__(self, ranks: int = 1, clock: ManualClock | None = None) -> None:
        self.source = Source(ranks=ranks, clock=clock)
        self.server = PeerServer(KEY, identity("d0", SOURCE_LIFE), self.source.table)
        self.server.start()
        self.client = PeerClient(KEY, identity("p0", TARGET_LIFE), connect_s=BOUND_S)
        self.backend = FakeBackend()
        self.puller = Puller(
            self.client,
            [FakeBackend("unknown-there"), self.backend],
            **PATIENT,
        )

    def job(self, transfer: str, hashes: tuple[bytes, ...], **changes: Any) -> PullJob:
        fields: dict[str, Any] = {
            "transfer": transfer,
            "request": f"request-of-{transfer}",
            "address": self.server.address,
            "incarnation": SOURCE_LIFE,
            "hashes": hashes,
            "start": 0,
            "target_blocks": tuple(range(100, 100 + len(hashes))),
            "rank": 0,
            "ranks": 1,
            "verify": Verify.OFF,
            "deadline_s": BOUND_S,
        }
        return PullJob(**{**fields, **changes})

    def pull(self, job: PullJob) -> PullResult:
        self.puller.submit(job)
        return self.results(1)[0]

    def results(self, count: int) -> list[PullResult]:
        found: list[PullResult] = []

        def enough() -> bool:
            found.extend(self.puller.take())
            return len(found) >= count

        assert eventually(enough)
        assert len(found) == count
        return found

    def close(self) -> None:
        self.backend.gate.set()
        self.puller.close()
        self.client.close()
        self.server.close()


def assert_failed(result: PullResult, job: PullJob, stage: str, reason: str) -> None:
    assert not result.ok
    assert (result.stage, result.reason) == (stage, reason), result.detail
    assert result.failed_blocks == job.target_blocks
    assert result.count == 0
