"""Finding a prefix over real peer sessions: pins, refusals, and the plan as the second way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.connector.support import BLOCK, chain, tracked

from kvferry.core.events import PinEnded
from kvferry.core.messages import Candidate, PlanAnswer, PlanRequest
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.hints import Hint
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import PeerIdentity
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

KEY, SPACE, LIFE = b"k" * 32, "tiny-0123456789ab", "a" * 16
HASHES = chain("a", 8)
NOBODY = "127.0.0.1:1"
"""A port on which nothing listens."""


class Held:
    """What the coordinator told is held."""

    def __init__(self) -> None:
        self.missing: set[bytes] = set()
        self.position = 0

    def lacks(self, chain_hash: bytes) -> bool:
        return chain_hash in self.missing


class Plans:
    """A coordinator that answers at once."""

    def __init__(self) -> None:
        self.held, self.advice = Held(), SimpleNamespace(position=0)
        self.answer: PlanAnswer | None = None
        self.miss = "nothing_held"
        self.live = True
        self.asked: list[PlanRequest] = []

    def available(self) -> bool:
        return self.live

    def ask(self, request: PlanRequest, done: Any) -> None:
        self.asked.append(request)
        done(self.answer, self.miss)


class Scene:
    """A source ``d0`` that serves on a socket, and the looker of target ``p0``."""

    def __init__(self) -> None:
        self.ended: list[PinEnded] = []
        self.table = ExportTable(LIFE, on_pin_ended=self.ended.append)
        self.table.set_ranks([RankEndpoint(KEY, {"tcp": b""})])
        self.server = PeerServer(KEY, PeerIdentity("d0", SPACE, LIFE), self.table)
        self.server.start()
        self.client = PeerClient(KEY, PeerIdentity("p0", SPACE, "b" * 16))
        self.outbox, self.plans = Outbox(), Plans()
        self.threads = ThreadPoolExecutor(2)
        plans: Any = self.plans
        self.looker = Looker(
            Options(pin_timeout_ms=10_000),
            self.outbox,
            plans,
            self.threads,
            block_size=BLOCK,
            ranks=1,
        )
        self.joined: Any = SimpleNamespace(
            node="p0", space=SPACE, client=self.client, reads_host=True
        )

    def close(self) -> None:
        self.settle()
        self.client.close()
        self.server.close()

    def settle(self) -> None:
        """Wait until our threads have nothing to do."""
        self.threads.shutdown(wait=True)

    def offer(self, blocks: int) -> None:
        self.table.offer(HASHES[:blocks], range(blocks))

    def begin(self) -> tuple[Tracked, Pull]:
        one = tracked("r", HASHES)
        one.pull = pull = Pull("life.1", 0.0, 0.0)
        pull.joined = self.joined
        assert self.outbox.reserve()
        pull.slots.append(None)
        return one, pull

    def hint(self, blocks: int, **changes: Any) -> Hint:
        given: dict[str, Any] = {
            "node": "d0",
            "space": SPACE,
            "address": self.server.address,
            "incarnation": LIFE,
            "offer": "o",
            "blocks": blocks,
            "tail": HASHES[blocks - 1],
            "expires_ms": 1 << 61,
            **changes,
        }
        return Hint(**given)

    def candidate(self, blocks: int, **changes: Any) -> Candidate:
        given: dict[str, Any] = {
            "node": "d0",
            "address": self.server.address,
            "incarnation": LIFE,
            "blocks": blocks,
            "predicted_ms": 3.0,
            **changes,
        }
        return Candidate(**given)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_a_proved_hint_is_ready_at_once_and_pinned_behind_it(scene: Scene) -> None:
    scene.offer(8)
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8))
    assert (pull.state, pull.granted, pull.basis) == (PullState.READY, 8, "hint")
    scene.settle()
    assert scene.table.pins() == 1
    assert pull.pinned_at > 0


def test_a_hint_that_is_followed_is_recorded_with_the_advice_that_had_no_objection(
    scene: Scene,
) -> None:
    scene.offer(6)
    scene.plans.advice.position = 33
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(6))
    assert one.position == 33
    other, pull = scene.begin()
    scene.plans.live = False
    scene.looker.use_hint(other, pull, scene.hint(6))
    assert other.position == 0, "without a coordinator no advice counts"


def test_an_unproved_hint_gets_what_the_source_grants(scene: Scene) -> None:
    scene.offer(5)
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8, tail=bytes(32)))
    scene.settle()
    assert (pull.state, pull.granted) == (PullState.READY, 5)
    assert pull.miss == f"diverged@{5 * BLOCK}"


@pytest.mark.parametrize(
    ("changes", "miss"),
    [
        ({}, "not_offered"),
        ({"incarnation": "c" * 16}, "node_left"),
        ({"address": NOBODY}, "node_left"),
        ({"address": "nonsense"}, "peer_unreachable"),
    ],
)
def test_an_unusable_hint_ends_in_the_plan_and_keeps_its_cause(
    scene: Scene, changes: dict[str, Any], miss: str
) -> None:
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8, tail=bytes(32), **changes))
    scene.settle()
    assert len(scene.plans.asked) == 1
    assert (pull.state, one.miss, scene.outbox.reserved) == (PullState.ENDED, miss, 0)


def test_without_a_coordinator_an_unusable_hint_is_a_miss(scene: Scene) -> None:
    scene.plans.live = False
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8, tail=bytes(32)))
    scene.settle()
    assert scene.plans.asked == []
    assert (pull.state, one.miss) == (PullState.ENDED, "not_offered")


def test_a_paused_source_is_named(scene: Scene) -> None:
    scene.offer(8)
    scene.table.pause(True)
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8, tail=bytes(32)))
    scene.settle()
    assert one.miss == "paused"


def test_a_source_of_another_space_is_named(scene: Scene) -> None:
    other = PeerClient(KEY, PeerIdentity("p0", "tiny-ffffffffffff", "b" * 16))
    scene.joined.client = other
    scene.plans.answer = PlanAnswer(replica="c", candidates=(scene.candidate(8),))
    one, pull = scene.begin()
    scene.looker.ask_plan(one, pull)
    scene.settle()
    other.close()
    assert one.miss == "space_mismatch"


def test_a_plan_is_pinned_and_its_numbers_kept(scene: Scene) -> None:
    scene.offer(6)
    best, second = scene.candidate(6), scene.candidate(3, node="d1", address=NOBODY)
    scene.plans.answer = PlanAnswer(
        replica="c", candidates=(best, second), recompute_ms=90.0, position=71
    )
    one, pull = scene.begin()
    scene.looker.ask_plan(one, pull)
    scene.settle()
    (asked,) = scene.plans.asked
    assert (asked.prompt_tokens, asked.stride, len(asked.hashes)) == (8 * BLOCK, 4, 16)
    assert (pull.state, pull.granted, pull.source) == (PullState.READY, 6, "d0")
    assert (pull.predicted_ms, pull.recompute_ms, pull.options) == (3.0, 90.0, ("d0", "d1"))
    assert (pull.miss, one.position) == ("", 71)


def test_what_was_told_is_recorded_with_how_much_of_the_ledger_it_knew(scene: Scene) -> None:
    scene.plans.held.position = 40
    one, _ = scene.begin()
    assert (one.told, one.position) == (False, 0)
    scene.looker.spare(one)
    assert (one.told, one.position) == (True, 40)


def test_a_trial_pins_only_the_part_that_it_is_to_move(scene: Scene) -> None:
    scene.offer(8)
    tried = scene.candidate(3, limit=3, recompute_ms=1.0, doubt=0.1)
    scene.plans.answer = PlanAnswer(replica="c", candidates=(tried,), prefill_ms=70.0)
    one, pull = scene.begin()
    scene.looker.ask_plan(one, pull)
    scene.settle()
    assert (pull.state, pull.granted) == (PullState.READY, 3)
    assert (pull.recompute_ms, pull.doubt, pull.prefill_ms) == (1.0, 0.1, 70.0)


@pytest.mark.parametrize("answer", [None, PlanAnswer(replica="c", miss="too_dear")])
def test_a_plan_without_candidates_is_a_miss(scene: Scene, answer: PlanAnswer | None) -> None:
    scene.plans.answer = answer
    one, pull = scene.begin()
    scene.looker.ask_plan(one, pull)
    assert one.miss == ("too_dear" if answer else "nothing_held")
    assert (pull.state, scene.outbox.reserved) == (PullState.ENDED, 0)


def test_a_pin_that_nobody_waits_for_is_given_back(scene: Scene) -> None:
    scene.offer(8)
    one, pull = scene.begin()
    pull.cancelled = True
    scene.looker.use_hint(one, pull, scene.hint(8, tail=bytes(32)))
    scene.settle()
    assert scene.table.pins() == 0
    assert [end.how for end in scene.ended] == ["abort"]
    assert pull.state is PullState.LOOKING


def test_an_abort_ends_the_pin_and_a_missing_source_is_no_error(scene: Scene) -> None:
    scene.offer(8)
    one, pull = scene.begin()
    scene.looker.use_hint(one, pull, scene.hint(8))
    scene.looker.abort(pull, "unused")
    gone = Pull("life.2", 0.0, 0.0)
    gone.joined, gone.address = scene.joined, NOBODY
    scene.looker.abort(gone, "unused")
    scene.looker.renew(gone)
    scene.settle()
    # Whichever came first: no pin stands.
    assert scene.table.pins() == 0


def test_the_outcome_slot_is_given_back_once(scene: Scene) -> None:
    _, pull = scene.begin()
    assert scene.outbox.reserve()
    scene.looker.unreserve(pull)
    scene.looker.unreserve(pull)
    assert scene.outbox.reserved == 1


STRIDE = 128 // BLOCK


@pytest.mark.parametrize(
    ("local_blocks", "missing_block", "word"),
    [
        (0, STRIDE - 1, "nothing_held"),
        (0, 2 * STRIDE - 1, ""),
        (STRIDE - 1, STRIDE - 1, "local"),
        (STRIDE, STRIDE - 1, ""),
        (STRIDE, 2 * STRIDE - 1, "local"),
        (2 * STRIDE, 2 * STRIDE - 1, "local"),
    ],
)
def test_the_first_sampled_block_beyond_the_local_ones_decides_whether_to_ask(
    scene: Scene, local_blocks: int, missing_block: int, word: str
) -> None:
    hashes = chain("long", 2 * STRIDE + 1)
    scene.plans.held.missing = {hashes[missing_block]}
    assert scene.looker.spared(tracked("r", hashes), local_blocks * BLOCK) == word


def test_a_prompt_without_a_sampled_block_is_in_no_plan(scene: Scene) -> None:
    assert scene.looker.spared(tracked("r", chain("a", STRIDE - 1)), 0) == "too_short"
    assert scene.looker.spared(tracked("r", chain("a", STRIDE)), 0) == ""
