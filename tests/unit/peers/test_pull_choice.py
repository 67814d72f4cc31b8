"""Which backend a pair uses: pure decisions over a clock that the test moves."""

from __future__ import annotations

from kvferry.node.pull.choice import (
    PROBE_AGAIN_S,
    PROBE_BLOCKS_MIN,
    PROBE_BYTES_MAX,
    PROBE_PAUSE_S,
    SET_ASIDE_MAX_S,
    SET_ASIDE_S,
    Choice,
    Measured,
)

NAMES = ("peer", "nixl", "tcp")
BLOCK_BYTES = 65536
LARGE = 1024
NOW_S = 1000.0


def measured(**rates: float) -> list[Measured]:
    return [Measured(name, rate, 0.1) for name, rate in rates.items()]


def probed(choice: Choice, now_s: float = NOW_S, **rates: float) -> Choice:
    """After a probe with these results."""
    assert choice.probe_blocks(tuple(rates), LARGE, BLOCK_BYTES, now_s) > 0
    choice.probed(measured(**rates))
    return choice


def first(choice: Choice, now_s: float = NOW_S) -> str:
    return choice.order(NAMES, now_s)[0]


def wants_probe(choice: Choice, now_s: float) -> bool:
    return choice.probe_blocks(NAMES, LARGE, BLOCK_BYTES, now_s) > 0


def test_before_anything_is_measured_preference_decides() -> None:
    choice = Choice()
    choice.settle(NAMES, NOW_S)
    assert choice.order(NAMES, NOW_S) == list(NAMES)
    news = choice.take_news()
    assert news is not None
    assert (news.backend, news.why) == ("peer", "first by preference, not measured")
    choice.settle(NAMES, NOW_S)
    assert choice.take_news() is None


def test_the_only_common_backend_is_not_probed() -> None:
    choice = Choice()
    assert choice.probe_blocks(("tcp",), LARGE, BLOCK_BYTES, NOW_S) == 0
    choice.settle(("tcp",), NOW_S)
    news = choice.take_news()
    assert news is not None
    assert (news.backend, news.why, news.measured) == ("tcp", "the only one both have", ())


def test_a_small_transfer_is_not_probed_and_a_larger_one_is_bounded() -> None:
    each = len(NAMES) * PROBE_BLOCKS_MIN * 2
    assert Choice().probe_blocks(NAMES, each - 1, BLOCK_BYTES, NOW_S) == 0
    assert Choice().probe_blocks(NAMES, each, BLOCK_BYTES, NOW_S) == PROBE_BLOCKS_MIN
    most = PROBE_BYTES_MAX // BLOCK_BYTES
    assert Choice().probe_blocks(NAMES, 100 * most, BLOCK_BYTES, NOW_S) == most


def test_the_fastest_is_used_from_then_on_and_the_rest_follow_by_rate() -> None:
    choice = probed(Choice(), peer=1.0, nixl=5.0, tcp=3.0)
    assert choice.order(NAMES, NOW_S) == ["nixl", "tcp", "peer"]
    news = choice.take_news()
    assert news is not None
    assert (news.backend, news.why) == ("nixl", "fastest of 3 measured")
    assert [one.gb_per_s for one in news.measured] == [1.0, 5.0, 3.0]


def test_a_little_faster_is_not_enough_to_switch() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    later_s = NOW_S + PROBE_AGAIN_S
    probed(choice, later_s, peer=4.0, nixl=1.0, tcp=4.9)
    assert first(choice, later_s) == "peer"
    news = choice.take_news()
    assert news is not None
    assert news.why == "as fast as tcp, and in use"
    probed(choice, later_s + PROBE_AGAIN_S, peer=4.0, nixl=1.0, tcp=5.1)
    assert first(choice, later_s) == "tcp"


def test_losers_are_measured_again_after_a_time_only() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    assert not wants_probe(choice, NOW_S + PROBE_AGAIN_S - 1)
    assert wants_probe(choice, NOW_S + PROBE_AGAIN_S)


def test_a_winner_that_slows_down_is_compared_again() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    size = PROBE_BYTES_MAX
    later_s = NOW_S + PROBE_PAUSE_S
    for _ in range(20):
        choice.moved("peer", size, size / 5e6, LARGE)
    assert not wants_probe(choice, later_s)
    choice.moved("peer", size, size / 1e6, LARGE)
    assert not wants_probe(choice, later_s)  # one slow transfer says little
    for _ in range(20):
        choice.moved("peer", size, size / 1e6, LARGE)
    assert not wants_probe(choice, later_s - 1)
    assert wants_probe(choice, later_s)


def test_transfers_smaller_than_the_probe_say_nothing_of_the_rate() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    for _ in range(50):
        choice.moved("peer", BLOCK_BYTES, 100.0, PROBE_BLOCKS_MIN)
    assert not wants_probe(choice, NOW_S + PROBE_PAUSE_S)


def test_a_failed_backend_goes_last_for_a_time_that_doubles() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    choice.take_news()
    now_s, aside_s = NOW_S, SET_ASIDE_S
    while aside_s < SET_ASIDE_MAX_S:
        choice.failed("peer", "no permission", NAMES, now_s)
        assert choice.order(NAMES, now_s)[-1] == "peer"
        assert "peer" not in choice.usable(NAMES, now_s + aside_s - 0.01)
        now_s += aside_s
        assert "peer" in choice.usable(NAMES, now_s)
        aside_s *= 2
    for _ in range(100):
        choice.failed("peer", "no permission", NAMES, now_s)
    assert "peer" in choice.usable(NAMES, now_s + SET_ASIDE_MAX_S)
    news = choice.take_news()
    assert news is not None
    assert news.backend == "tcp"
    assert news.why == "peer is set aside for 600 s: no permission"


def test_a_failed_backend_is_measured_again_when_its_time_is_over() -> None:
    choice = probed(Choice(), peer=5.0, nixl=1.0, tcp=3.0)
    choice.failed("peer", "gone", NAMES, NOW_S)
    assert not wants_probe(choice, NOW_S + PROBE_PAUSE_S - 1)
    assert wants_probe(choice, NOW_S + PROBE_PAUSE_S)
    choice.probed(measured(peer=9.0, nixl=1.0, tcp=3.0))
    assert first(choice, NOW_S + PROBE_PAUSE_S) == "peer"
    choice.failed("peer", "gone", NAMES, NOW_S)
    assert "peer" in choice.usable(NAMES, NOW_S + SET_ASIDE_S)  # good conduct has reset its time


def test_when_all_have_failed_the_one_that_is_free_first_is_tried() -> None:
    choice = Choice()
    for name in ("tcp", "peer", "nixl"):
        choice.failed(name, "x", NAMES, NOW_S)
    choice.failed("tcp", "x", NAMES, NOW_S)
    assert choice.order(NAMES, NOW_S) == ["peer", "nixl", "tcp"]
    assert choice.probe_blocks(NAMES, LARGE, BLOCK_BYTES, NOW_S) == 0


def test_what_failed_in_a_probe_stands_in_its_reason() -> None:
    choice = Choice()
    assert wants_probe(choice, NOW_S)
    choice.failed("peer", "another host", NAMES, NOW_S)
    choice.probed(measured(tcp=3.0))
    news = choice.take_news()
    assert news is not None
    assert news.backend == "tcp"
    assert news.why == (
        "the only one that worked when measured; peer is set aside for 5 s: another host"
    )
