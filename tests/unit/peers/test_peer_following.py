"""Pulls that follow a prefill: over real sockets, with a fake data plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.peers.puller_bench import PATIENT, Bench, assert_failed
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    chain,
    eventually,
    identity,
    serve,
)

from kvferry.node.export.published import COMPLETE, ENDED, OTHER, RUNNING, UNKNOWN
from kvferry.node.peers.client import PeerClient
from kvferry.node.pull import puller as puller_module
from kvferry.node.pull.attempt import NOBODY_LISTENS
from kvferry.node.pull.follower import CLOSED, GONE, REFUSED, UNREACHABLE, Follower, Following
from kvferry.node.pull.puller import Puller, PullJob

HASHES = chain("a", 6)


class FollowBench(Bench):
    """A source that computes, and a target that follows it."""

    def __init__(self, silent_s: float = 20.0) -> None:
        super().__init__()
        self.puller.close()
        self.follow_client = PeerClient(KEY, identity("p0", TARGET_LIFE), connect_s=BOUND_S)
        self.follower = Follower(self.follow_client, silent_s=silent_s)
        self.puller = Puller(self.client, [self.backend], follower=self.follower, **PATIENT)
        self.published = self.source.table.published

    def begin(self, name: str = "h", hashes: tuple[bytes, ...] = HASHES) -> None:
        assert self.published.begin(name, hashes, len(hashes))

    def write(self, ready: int, name: str = "h", hashes: tuple[bytes, ...] = HASHES) -> None:
        """The source has written the first ``ready`` blocks."""
        self.source.table.offer(hashes[:ready], range(10, 10 + ready))
        self.published.grown(name, ready, last=False)

    def read(self, blocks: int) -> bool:
        """Whether so many blocks have arrived."""
        return eventually(lambda: len(self.backend.pool) >= blocks)

    def follows(self, name: str = "h", **changes: Any) -> PullJob:
        job = self.job(f"t-{name}", HASHES, follow=name, **changes)
        self.puller.submit(job)
        return job

    def follow(self, name: str = "h", hashes: tuple[bytes, ...] = HASHES) -> Following:
        return self.follower.follow(self.server.address, SOURCE_LIFE, name, len(hashes), hashes[-1])

    def close(self) -> None:
        self.backend.gate.set()
        self.puller.close()
        self.follow_client.close()
        self.follower.close()
        super().close()


@pytest.fixture
def bench() -> Iterator[FollowBench]:
    made = FollowBench()
    yield made
    made.close()


def test_blocks_are_read_while_the_prefill_goes_on(bench: FollowBench) -> None:
    bench.begin()
    bench.write(2)
    bench.follows()
    assert bench.read(2)
    assert bench.puller.take() == []
    bench.write(5)
    assert bench.read(5)
    assert bench.puller.take() == []
    bench.write(6)
    bench.published.end("h", 6)
    result = bench.results(1)[0]
    assert result.ok
    assert (result.count, result.failed_blocks, result.bytes) == (6, (), 18)
    assert bench.backend.pool == {100 + i: b"kv%d" % (10 + i) for i in range(6)}
    assert bench.source.how() == [("t-h", "intact")]
    assert [len(r.source_blocks) for r in bench.backend.requests] == [2, 3, 1]
    assert result.total_ms >= result.pin_ms + result.read_ms


def test_a_target_that_has_the_beginning_pulls_the_rest(bench: FollowBench) -> None:
    bench.begin()
    bench.write(3)
    job = bench.job("t", HASHES[2:], start=2, follow="h", target_blocks=(50, 51, 52, 53))
    bench.puller.submit(job)
    assert bench.read(1)
    bench.write(6)
    assert bench.results(1)[0].count == 4
    assert sorted(bench.backend.pool) == [50, 51, 52, 53]


def test_a_prefill_that_ends_early_leaves_the_rest_to_be_computed(bench: FollowBench) -> None:
    bench.begin()
    bench.write(4)
    bench.follows()
    assert bench.read(4)
    bench.published.end("h", 4)
    result = bench.results(1)[0]
    assert (result.ok, result.count, result.failed_blocks) == (True, 4, (104, 105))
    assert bench.source.how() == [("t-h", "intact")]


def test_a_part_that_is_gone_before_it_is_read_leaves_the_parts_before_it(
    bench: FollowBench,
) -> None:
    bench.begin()
    bench.write(4)
    bench.follows()
    assert bench.read(4)
    bench.published.end("h", 6)  # Its last two blocks went to others at once.
    result = bench.results(1)[0]
    assert (result.ok, result.count, result.failed_blocks) == (True, 4, (104, 105))


def test_a_prefill_that_ends_without_a_block_is_refused(bench: FollowBench) -> None:
    bench.begin()
    job = bench.follows()
    bench.published.end("h", 0)
    result = bench.results(1)[0]
    assert_failed(result, job, "pin", "refused")
    assert ENDED in result.detail


def test_blocks_reused_while_the_prefill_goes_on_make_all_void(bench: FollowBench) -> None:
    bench.begin()
    bench.write(4)
    job = bench.follows()
    assert bench.read(4)
    bench.source.table.reused(11)
    bench.published.end("h", 4)
    assert_failed(bench.results(1)[0], job, "settle", "void")


def test_without_done_they_would_be_taken_for_good(bench: FollowBench) -> None:
    """The negative control of the one before."""
    bench.puller.unsafe_skip_done = True
    bench.begin()
    bench.write(4)
    bench.follows()
    assert bench.read(4)
    bench.source.table.reused(11)
    bench.published.end("h", 4)
    assert bench.results(1)[0].ok


def test_a_source_that_dies_meanwhile_leaves_nothing_to_use(bench: FollowBench) -> None:
    bench.begin()
    bench.write(4)
    job = bench.follows()
    assert bench.read(4)
    bench.server.close()
    result = bench.results(1)[0]
    assert_failed(result, job, "settle", "unreachable")
    assert result.detail.startswith(NOBODY_LISTENS)


def test_a_cancelled_pull_ends_and_frees_the_source(bench: FollowBench) -> None:
    bench.begin()
    bench.write(2)
    job = bench.follows()
    assert bench.read(2)
    bench.puller.cancel("t-h")
    result = bench.results(1)[0]
    assert (result.ok, result.reason, result.failed_blocks) == (False, "aborted", job.target_blocks)
    assert eventually(lambda: bench.source.how() == [("t-h", "abort")])


def test_a_read_that_fails_names_its_reason_and_fence(bench: FollowBench) -> None:
    bench.begin()
    bench.write(2)
    bench.backend.gate.clear()
    job = bench.follows(deadline_s=3.0)
    result = bench.results(1)[0]
    assert_failed(result, job, "read", "deadline")
    assert result.fence == "fake_fence"


def test_a_prefill_that_stands_still_ends_the_wait(bench: FollowBench) -> None:
    bench.begin()
    bench.write(2)
    job = bench.follows(deadline_s=2.0)
    assert_failed(bench.results(1)[0], job, "pin", "deadline")


def test_followed_prefills_do_not_keep_other_pulls_waiting(
    bench: FollowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "FOLLOWS_MAX", 6)
    for i in range(12):
        bench.begin(f"h{i}")
        bench.follows(f"h{i}")
    plain = bench.pull(bench.job("plain", bench.source.offer("b", 2, first_block=60)))
    assert plain.ok
    bench.source.table.offer(HASHES, range(10, 16))
    for i in range(12):
        bench.published.end(f"h{i}", 6)
    assert all(result.ok for result in bench.results(12))


def test_a_puller_that_closes_ends_what_follows(bench: FollowBench) -> None:
    bench.begin()
    bench.follows()
    bench.puller.close()
    (result,) = bench.puller.take()
    assert (result.ok, result.reason) == (False, "aborted")


def test_a_follower_hears_of_a_prefill_before_it_exists(bench: FollowBench) -> None:
    one = bench.follow()
    assert eventually(lambda: one.state == UNKNOWN and one.unknown_since_s > 0)
    bench.begin()
    bench.write(3)
    assert one.wait_beyond(2, 20.0)
    assert (one.ready, one.state, one.unknown_since_s) == (3, RUNNING, 0.0)
    bench.write(6)
    assert one.wait_beyond(5, 20.0)
    assert (one.ready, one.state, one.over, one.lost) == (6, COMPLETE, True, False)


def test_several_are_followed_at_once_and_each_on_its_own(bench: FollowBench) -> None:
    bench.begin("h1")
    other = chain("b", 6)
    bench.begin("h2", other)
    one, two, wrong = bench.follow("h1"), bench.follow("h2", other), bench.follow("h2")
    assert eventually(lambda: wrong.state == OTHER)
    bench.write(2, "h2", other)
    assert two.wait_beyond(1, 20.0)
    assert one.ready == 0
    bench.follower.leave(two)
    bench.follower.leave(two)
    bench.write(4, "h1")
    assert one.wait_beyond(3, 20.0)
    assert two.ready == 2


def test_another_life_of_the_source_is_refused(bench: FollowBench) -> None:
    one = bench.follower.follow(bench.server.address, "dddddddddddddddd", "h", 6, HASHES[5])
    assert one.wait_beyond(0, 20.0)
    assert one.state == REFUSED
    assert "incarnation" in one.detail


def test_a_source_that_is_gone_and_one_that_is_silent(bench: FollowBench) -> None:
    address = bench.server.address
    bench.server.close()
    gone = bench.follower.follow(address, SOURCE_LIFE, "h", 6, HASHES[5])
    assert gone.wait_beyond(0, 20.0)
    assert (gone.state, gone.lost) == (GONE, True)
    impatient = Follower(bench.follow_client, silent_s=0.2)
    silent = impatient.follow("127.0.0.1:nowhere", SOURCE_LIFE, "h", 6, HASHES[5])
    assert silent.wait_beyond(0, 20.0)
    assert silent.state == UNREACHABLE
    impatient.close()


def test_a_source_that_comes_back_in_time_is_followed_on(bench: FollowBench) -> None:
    bench.begin()
    bench.write(2)
    one = bench.follow()
    assert one.wait_beyond(1, 20.0)
    # A new connection to the same process: only the session broke.
    session = bench.follow_client._peers[bench.server.address].session
    assert session is not None
    session.close()
    bench.write(6)
    assert one.wait_beyond(5, 20.0)
    assert one.state == COMPLETE


def test_a_closed_follower_follows_nothing(bench: FollowBench) -> None:
    bench.begin()
    one = bench.follow()
    bench.follow_client.close()
    bench.follower.close()
    assert one.state == CLOSED
    assert bench.follow().state == CLOSED


def test_a_server_that_closes_answers_whoever_waits() -> None:
    made = FollowBench()
    try:
        made.begin()
        one = made.follow()
        assert eventually(lambda: one.state != "")
        made.source.table.close()
        assert one.wait_beyond(0, 20.0)
        assert one.state == "stopped"
        assert serve  # The server itself still answers other questions.
    finally:
        made.close()
