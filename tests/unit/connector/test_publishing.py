"""Blocks offered while their request runs, on vLLM's own block pool and step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.connector.support import BLOCK, chain, request
from tests.unit.connector.test_exports import Engine

from kvferry.node.export.published import COMPLETE, ENDED, LAST, RUNNING, UNKNOWN, WAITING
from kvferry.node.peers.wire import Follow, Followed, Progress
from kvferry_connectors.vllm.items import Offered, Reused
from kvferry_connectors.vllm.publishing import Publishing, written_blocks
from kvferry_connectors.vllm.tracked import Tracked


class Prefill:
    """A published request of six and a half blocks on an engine with steps in flight."""

    def __init__(self, *, local: int = 0, name: str = "h", shareable: bool = True) -> None:
        self.engine = Engine()
        self.publishing = Publishing(self.engine.table.published, self.engine.exports, BLOCK)
        self.hashes = chain("a", 6)
        self.request = request("r", self.hashes, tokens=6 * BLOCK + 16, params={"publish": name})
        self.request.num_computed_tokens, self.request.num_in_flight_tokens = 0, 0
        self.tracked = Tracked(self.request, BLOCK, 0.0, shareable)
        self.local = local
        self.held = self.engine.pool.get_new_blocks(7)
        self.ids = [block.block_id for block in self.held]
        self.given = 0
        self.publishing.begin(self.request, self.tracked)

    def schedule(self, blocks: float, *, preempted: bool = False) -> None:
        """A step is scheduled for so many blocks' worth of tokens; vLLM asks us in its midst."""
        tokens = int(blocks * BLOCK)
        first = not self.request.num_computed_tokens
        if first:
            self.request.num_computed_tokens = self.local * BLOCK
        whole = -(-(self.request.num_computed_tokens + tokens) // BLOCK)
        new, self.given = self.ids[self.given : whole], whole
        scheduled = SimpleNamespace(
            req_id="r", block_ids=(new,), num_computed_tokens=self.request.num_computed_tokens
        )
        nobody = SimpleNamespace(req_ids=[], new_block_ids=[])
        cached = SimpleNamespace(req_ids=["r"], new_block_ids=[(new,) if new else None])
        self.publishing.scheduled(
            SimpleNamespace(
                preempted_req_ids={"r"} if preempted else None,
                scheduled_new_reqs=[scheduled] if first and tokens else [],
                scheduled_cached_reqs=nobody if first or not tokens else cached,
                num_scheduled_tokens={"r": tokens} if tokens else {},
            ),
            {"r": self.tracked},
        )
        self.request.num_computed_tokens += tokens
        self.request.num_in_flight_tokens += tokens

    def update(self, blocks: float) -> None:
        """vLLM takes in the output of the step of so many blocks."""
        self.request.num_in_flight_tokens -= int(blocks * BLOCK)

    def seen(self) -> tuple[int, str]:
        one = Followed(name="h", blocks=6, tail=self.hashes[-1])
        answer = self.engine.table.published.follow(Follow(prefills=(one,)))
        assert isinstance(answer, Progress)
        return answer.ready[0], answer.states[0]

    @property
    def offered(self) -> int:
        return self.engine.table.held(self.hashes)


def test_blocks_are_offered_once_their_step_was_taken_in() -> None:
    one = Prefill()
    assert one.seen() == (0, WAITING)
    one.schedule(2)
    assert (one.seen(), one.offered) == ((0, WAITING), 0)
    one.update(2)
    assert one.offered == 0
    one.schedule(2.5)
    assert (one.seen(), one.offered) == ((2, RUNNING), 2)
    one.update(2.5)
    one.schedule(2)
    assert (one.seen(), one.offered) == ((4, LAST), 4)
    one.publishing.ended(one.tracked, 6)
    assert one.seen() == (6, COMPLETE)


def test_steps_in_flight_are_not_written() -> None:
    one = Prefill()
    one.schedule(2)
    one.schedule(2)  # Asynchronous scheduling: the first step is still at work.
    assert one.offered == 0
    one.update(2)
    one.schedule(2)
    assert one.offered == 2
    one.update(2)
    assert one.offered == 2


def test_what_it_began_with_is_offered_after_its_first_step() -> None:
    """Blocks found in the cache may be written by the very step that it begins in."""
    one = Prefill(local=3)
    one.schedule(1)
    assert one.offered == 0
    one.schedule(1)
    assert one.offered == 0
    one.update(1)
    one.schedule(1.5)
    assert (one.seen(), one.offered) == ((4, LAST), 4)


def test_a_load_that_failed_behind_its_back_offers_nothing_it_lost() -> None:
    """Another connector's load may fail in the step that it belongs to; vLLM rewinds then."""
    one = Prefill(local=3)
    one.schedule(1)
    one.request.num_in_flight_tokens = 0
    one.request.num_computed_tokens = 1 * BLOCK
    one.schedule(1)
    assert one.offered == 0


def test_a_prompt_that_is_complete_before_the_request_ends() -> None:
    one = Prefill()
    one.schedule(6.5)
    one.update(6.5)
    one.schedule(0)
    assert (one.seen(), one.offered) == ((6, COMPLETE), 6)
    assert len(one.engine.table.published) == 0
    one.publishing.ended(one.tracked, 7)
    assert one.seen() == (6, COMPLETE)


def test_a_preempted_request_is_followed_no_longer() -> None:
    one = Prefill()
    one.schedule(2)
    one.update(2)
    one.schedule(2)
    one.update(2)
    one.schedule(0, preempted=True)
    assert one.seen() == (2, ENDED)
    one.publishing.ended(one.tracked, 6)
    assert one.seen() == (2, ENDED)


def test_an_aborted_request_says_what_it_leaves() -> None:
    one = Prefill()
    one.publishing.ended(one.tracked, 0)
    assert one.seen() == (0, ENDED)
    other = Prefill()
    other.schedule(2)
    other.update(2)
    other.publishing.ended(other.tracked, 2)
    assert other.seen() == (2, ENDED)


@pytest.mark.parametrize("given", [{"name": ""}, {"shareable": False}, {"name": ["h"]}])
def test_requests_that_are_not_published(given: Any) -> None:
    one = Prefill(**given)
    one.schedule(2)
    one.update(2)
    one.schedule(2)
    one.publishing.ended(one.tracked, 6)
    assert (one.seen(), one.offered) == ((0, UNKNOWN), 0)


def test_nothing_is_published_while_paused() -> None:
    one = Prefill()
    one.engine.exports.paused = True
    one.publishing.clear()
    one.engine.exports.clear("paused")
    one.publishing.begin(one.request, one.tracked)
    assert len(one.engine.table.published) == 0


def test_a_block_that_is_reused_before_the_request_ends_is_void() -> None:
    """Preempted: its blocks go to another while a reader has them pinned."""
    one = Prefill()
    one.schedule(3)
    one.update(3)
    one.schedule(1)
    one.engine.pin(one.hashes[:3])
    one.engine.pool.free_blocks(reversed(one.held))
    one.engine.pool.get_new_blocks(32)
    assert not one.engine.done().intact
    assert one.offered == 0
    one.engine.exports.each_step()
    assert len(one.engine.handed(Reused)[0].hashes) == 3


def test_offering_early_takes_no_block_and_keeps_none() -> None:
    one = Prefill()
    free = one.engine.free
    one.schedule(3)
    one.update(3)
    one.schedule(3)
    assert one.engine.free == free
    one.engine.pool.free_blocks(reversed(one.held))
    assert one.engine.free == free + 7
    assert one.offered == 3


def test_the_offer_at_the_end_is_new_although_all_was_offered_early() -> None:
    """An older offer of the same chain may have lost blocks, and then covers less."""
    one = Prefill()
    one.engine.exports.offer(Tracked(one.request, BLOCK, 0.0, True), one.ids, 6)
    one.engine.exports.each_step()
    again = Prefill()
    again.schedule(6)
    again.update(6)
    again.schedule(0)
    first, _ = again.engine.exports.offer(again.tracked, again.ids, 6)
    second, _ = again.engine.exports.offer(Tracked(again.request, BLOCK, 0.0, True), again.ids, 6)
    assert first == second  # Nothing happened in between, so the offer still stands.
    assert [item.offer for item in again.engine.handed(Offered)] == [first]


def test_written_blocks_of_a_request_that_ends() -> None:
    one = Prefill()
    one.request.num_computed_tokens, one.request.num_tokens = 6 * BLOCK, 6 * BLOCK + 17
    assert written_blocks(one.request, one.tracked, 7, BLOCK) == 0
    one.tracked.computing = True
    assert written_blocks(one.request, one.tracked, 7, BLOCK) == 6
    one.request.num_in_flight_tokens = 1
    assert written_blocks(one.request, one.tracked, 7, BLOCK) == 5
    assert written_blocks(one.request, one.tracked, 3, BLOCK) == 3


def test_what_a_request_pulled_is_offered_as_soon_as_it_runs() -> None:
    one = Prefill(name="")
    one.tracked.local_tokens, one.tracked.pulled_tokens = BLOCK, 3 * BLOCK
    one.local = 4
    one.schedule(2.5)
    assert one.offered == 4
    (offer,) = one.engine.handed(Offered)
    assert offer.hashes == one.hashes[:4]
    # At its end the longer chain covers it.
    assert one.engine.exports.offer(one.tracked, one.ids, 6)[1] == 6
    last = one.engine.handed(Offered)[-1]
    assert last.hashes == one.hashes[:6]


def test_the_last_block_of_a_prompt_that_was_pulled_whole_waits_for_the_end() -> None:
    one = Prefill(name="")
    one.tracked.prompt_tokens = 6 * BLOCK
    one.tracked.pulled_tokens = 6 * BLOCK
    one.local = 5
    one.schedule(1)
    assert one.offered == 5


def test_what_was_not_pulled_is_not_offered_before_its_end() -> None:
    one = Prefill(name="")
    one.tracked.local_tokens = 4 * BLOCK
    one.local = 4
    one.schedule(2.5)
    assert one.offered == 0
