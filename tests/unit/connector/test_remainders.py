"""What a hint offers beyond the engine's own cache is weighed by itself."""

from __future__ import annotations

import pytest
from tests.unit.connector.pull_desk import Desk, hint
from tests.unit.connector.support import BLOCK, chain, tracked
from tests.unit.daemon.support import SPACE

from kvferry.core.messages import Advice, advice_subject, encode
from kvferry.core.placement import TRIAL_BLOCKS_MIN
from kvferry.core.retention_gaps import prior
from kvferry.core.trials import TRIAL_SHARE
from kvferry_connectors.vllm.tracked import Pull, Tracked

BLOCKS = 64
HASHES = chain("a", BLOCKS)
TOKENS = BLOCKS * BLOCK
COMPUTING = (50.0, 0.0)
"""50 ms per 1,000 tokens: 1.6 ms a block."""
NEAR, FAR = (10.0, 1.0), (1_000.0, 1.0)
"""Links of 10 ms and of 1 s even for the smallest move: the first pays from 7 blocks on."""


async def advised(desk: Desk, link: tuple[float, float], **changes: object) -> None:
    """The leader tells ``p0`` what moving from ``d0`` takes."""
    given: dict[str, object] = {
        "replica": "c",
        "term": 1,
        "gaps": prior(),
        "links": {"d0>p0": link},
        "computing": {"p0": COMPUTING},
        "position": 77,
        "weighs": True,
        **changes,
    }
    await desk.looker.advice.heard(advice_subject(SPACE), encode(Advice(**given)), None)  # type: ignore[arg-type]


def begun(desk: Desk) -> tuple[Tracked, Pull]:
    """A request of whose whole prompt ``d0`` has the KV, as its hint says."""
    raw = hint(blocks=BLOCKS, tail=HASHES[-1])
    one = desk.begin(tracked("r", HASHES, tokens=TOKENS + 5, params={"hint": raw}))
    return one, desk.found(one, BLOCKS)


async def test_a_rest_that_does_not_pay_is_computed_and_one_that_does_is_pulled() -> None:
    desk = Desk()
    await advised(desk, NEAR)
    one, pull = begun(desk)
    assert desk.pulls.answer(one, TOKENS - BLOCK) == 0
    assert (one.miss, desk.looker.aborted, desk.looker.freed) == ("too_dear", ["too_dear"], 1)
    desk.pulls.announce(one)
    (told,) = desk.facts()
    assert (told.transfer, told.source, told.miss, told.basis) == ("", "d0", "too_dear", "hint")
    assert (told.weighed_from, told.granted, told.position) == (TOKENS - BLOCK, BLOCKS, 77)
    assert told.predicted_ms == pytest.approx(10.0 + BLOCK / 1_000)
    assert told.recompute_ms == pytest.approx(BLOCK * COMPUTING[0] / 1_000)
    other, pull = begun(desk)
    local = TOKENS - 16 * BLOCK
    for _ in range(3):  # It may be asked any number of times.
        assert desk.pulls.answer(other, local) == 16 * BLOCK
    other.local_tokens = local
    desk.pulls.commit(other, local // BLOCK, list(range(16)))
    desk.pulls.announce(other)
    (told,) = desk.facts()
    assert (told.transfer, told.miss, told.tried) == (pull.transfer, "", False)
    assert (told.weighed_from, told.position) == (local, 77)
    assert 0 < told.predicted_ms < told.recompute_ms


@pytest.mark.parametrize(
    ("changes", "coordinator", "local_blocks", "basis"),
    [
        ({}, True, 0, "hint"),  # All of it is weighed when the request arrives.
        ({}, True, BLOCKS - 1, "plan"),  # The coordinator has weighed it.
        ({}, True, BLOCKS - 1, "handover"),
        ({"weighs": False}, True, BLOCKS - 1, "hint"),  # Also of older leaders, who do not say so.
        ({"links": {}}, True, BLOCKS - 1, "hint"),
        ({"links": {"d1>p0": FAR}}, True, BLOCKS - 1, "hint"),
        ({"computing": {}}, True, BLOCKS - 1, "hint"),
        ({}, False, BLOCKS - 1, "hint"),
    ],
)
async def test_otherwise_a_hint_is_followed_as_before(
    changes: dict[str, object], coordinator: bool, local_blocks: int, basis: str
) -> None:
    desk = Desk()
    await advised(desk, FAR, **changes)
    desk.looker.plans = coordinator
    one, pull = begun(desk)
    pull.basis = basis
    assert desk.pulls.answer(one, local_blocks * BLOCK) == (BLOCKS - local_blocks) * BLOCK
    assert (one.miss, pull.weighed_from if not changes else 0) == ("", 0)


async def test_the_control_is_dear_in_each_of_these_ways() -> None:
    desk = Desk()
    await advised(desk, FAR)
    one, _ = begun(desk)
    assert desk.pulls.answer(one, (BLOCKS - 1) * BLOCK) == 0
    assert one.miss == "too_dear"


async def test_the_operators_least_counts_before_costs() -> None:
    desk = Desk(min_pull_tokens=17 * BLOCK)
    await advised(desk, NEAR)
    one, _ = begun(desk)
    assert desk.pulls.answer(one, TOKENS - 16 * BLOCK) == 0
    assert one.miss == "local"


async def test_more_in_the_own_cache_is_weighed_anew() -> None:
    """A request that waits may find more there the next time that it is asked about."""
    desk = Desk()
    await advised(desk, NEAR)
    one, _ = begun(desk)
    assert desk.pulls.answer(one, TOKENS - 16 * BLOCK) == 16 * BLOCK
    assert desk.pulls.answer(one, TOKENS - BLOCK) == 0
    assert one.miss == "too_dear"


async def test_what_is_computed_pays_for_a_trial_of_the_link() -> None:
    """A link that carries nothing teaches nothing, and might be thought slow for ever."""
    desk = Desk()
    await advised(desk, FAR)
    rest = 32 * BLOCK
    spared_ms = rest * COMPUTING[0] / 1_000
    part_ms = TRIAL_BLOCKS_MIN * BLOCK * (COMPUTING[0] - FAR[1]) / 1_000
    expected = int((FAR[0] - part_ms) / (TRIAL_SHARE * spared_ms))
    for period in range(2):
        computed = 0
        while True:
            one, pull = begun(desk)
            extra = desk.pulls.answer(one, TOKENS - rest)
            assert extra is not None
            if extra:
                break
            computed += 1
            desk.outbox.unreserve()
            assert computed <= expected + 1, f"no trial in period {period}"
        assert computed in (expected, expected + 1)
        assert (extra, pull.tried) == (TRIAL_BLOCKS_MIN * BLOCK, True)
        assert desk.pulls.answer(one, TOKENS - rest) == extra, "the answer stays"
        desk.pulls.commit(one, BLOCKS - 32, list(range(TRIAL_BLOCKS_MIN)))
        desk.facts()
        desk.pulls.announce(one)
        (told,) = desk.facts()
        assert (told.transfer, told.tried) == (pull.transfer, True)
        assert told.granted == BLOCKS - 32 + TRIAL_BLOCKS_MIN
        assert told.predicted_ms > told.recompute_ms
