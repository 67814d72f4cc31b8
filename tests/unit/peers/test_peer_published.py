"""Published prefills: how far they are, who may follow them, and what is remembered."""

from __future__ import annotations

import threading

import pytest
from tests.unit.peers.support import BOUND_S, ManualClock, Source, chain, eventually

from kvferry.node.export import published
from kvferry.node.export.published import (
    COMPLETE,
    ENDED,
    ENDED_S,
    FOLLOWED_MAX,
    LAST,
    OTHER,
    PAUSED,
    PUBLISHED_MAX,
    RUNNING,
    STOPPED,
    UNKNOWN,
    WAITING,
    Published,
)
from kvferry.node.peers.wire import Follow, Followed, Progress, Refused

HASHES = chain("a", 8)


def look(made: Published, blocks: int = 8, *, wait_ms: int = 0, **known: object) -> object:
    """What a follower of the first ``blocks`` blocks is told: (ready, state), or the refusal."""
    one = Followed(name="h", blocks=blocks, tail=HASHES[blocks - 1], **known)  # type: ignore[arg-type]
    answer = made.follow(Follow(prefills=(one,), wait_ms=wait_ms))
    return (answer.ready[0], answer.states[0]) if isinstance(answer, Progress) else answer


def test_a_prefill_goes_on_to_its_end() -> None:
    made = Published()
    assert look(made) == (0, UNKNOWN)
    assert made.begin("h", HASHES, 8)
    assert look(made) == (0, WAITING)
    made.grown("h", 3, last=False)
    assert look(made) == (3, RUNNING)
    made.grown("h", 6, last=True)
    assert look(made) == (6, LAST)
    assert look(made, 5) == (5, COMPLETE)  # A shorter prompt with the same beginning.
    made.end("h", 8)
    assert look(made) == (8, COMPLETE)
    assert len(made) == 0


def test_an_early_end_is_told_with_what_there_was() -> None:
    made = Published()
    made.begin("h", HASHES, 8)
    made.grown("h", 4, last=False)
    made.end("h", 4)
    made.end("h", 8)
    made.grown("h", 8, last=True)
    assert look(made) == (4, ENDED)
    assert look(made, 4) == (4, COMPLETE)


def test_another_prompt_is_not_followed() -> None:
    made = Published()
    made.begin("h", chain("b", 8), 8)
    assert look(made) == (0, OTHER)
    made = Published()
    made.begin("h", HASHES, 7)
    assert look(made) == (0, OTHER)
    assert look(made, 7) == (0, WAITING)


def test_a_name_stays_with_the_request_that_has_it() -> None:
    made = Published()
    assert made.begin("h", HASHES, 8)
    assert not made.begin("h", chain("b", 8), 8)
    assert not made.begin("", HASHES, 8)
    assert not made.begin("x" * 257, HASHES, 8)
    assert not made.begin("short", HASHES, 0)
    made.end("h", 0)
    assert made.begin("h", HASHES, 8)
    assert look(made) == (0, WAITING)


def test_paused_and_stopped_nodes_say_so() -> None:
    source = Source()
    made = source.table.published
    made.begin("h", HASHES, 8)
    made.grown("h", 8, last=True)
    source.table.pause(True)
    assert look(made) == (0, PAUSED)
    source.table.pause(False)
    assert look(made) == (8, COMPLETE)
    source.table.close()
    assert look(made) == (0, STOPPED)


def test_news_ends_the_wait_and_nothing_else_does() -> None:
    made = Published()
    made.begin("h", HASHES, 8)
    told: list[object] = []
    asking = threading.Thread(
        target=lambda: told.append(look(made, wait_ms=100, ready=0, state=WAITING))
    )
    asking.start()
    asking.join(BOUND_S)
    assert told == [(0, WAITING)]  # No news: the same again, when the wait was over.
    assert look(made, wait_ms=100, ready=0, state="") == (0, WAITING)  # News at once.

    def until_news() -> None:
        while (seen := look(made, wait_ms=100, ready=0, state=WAITING)) == (0, WAITING):
            pass
        told.append(seen)

    asking = threading.Thread(target=until_news)
    asking.start()
    made.grown("h", 2, last=False)
    asking.join(BOUND_S)
    assert told[-1] == (2, RUNNING)


def test_ended_prefills_are_forgotten_in_time_and_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    made = Published(clock)
    made.begin("h", HASHES, 8)
    made.end("h", 8)
    clock.now_s += ENDED_S
    made.begin("other", HASHES, 8)
    made.end("other", 8)
    assert look(made) == (0, UNKNOWN)
    monkeypatch.setattr(published, "PUBLISHED_MAX", 2)
    for name in ("h", "i", "j"):
        made.begin(name, HASHES, 8)
        made.end(name, 8)
    assert look(made) == (0, UNKNOWN)
    assert made.begin("k", HASHES, 8)
    assert made.begin("l", HASHES, 8)
    assert not made.begin("m", HASHES, 8)
    assert PUBLISHED_MAX >= 1024


def test_too_many_at_once_are_refused() -> None:
    one = Followed(name="h", blocks=8, tail=HASHES[7])
    answer = Published().follow(Follow(prefills=(one,) * (FOLLOWED_MAX + 1)))
    assert isinstance(answer, Refused)
    assert answer.reason == "protocol"


def test_a_pin_grows_over_blocks_that_were_reused_before_they_were_granted() -> None:
    """A prefill takes memory that was offered under another name when the pin began."""
    source = Source()
    old = source.offer("old", 8)
    new = chain("new", 4)
    source.table.offer(new[:2], [20, 21])
    source.grant("t", new[:2])
    for block in (2, 3):  # The prefill goes on in blocks that another chain had.
        source.table.reused(block)
    source.table.offer(new[2:], [2, 3])
    source.grant("t", new[2:], start=2)
    assert source.intact("t")
    assert source.table.held(old) == 2


@pytest.mark.parametrize("block", [20, 2])
def test_a_pin_that_grew_is_void_once_any_of_its_blocks_is_reused(block: int) -> None:
    source = Source()
    new = chain("new", 4)
    source.table.offer(new[:2], [20, 21])
    source.grant("t", new[:2])
    source.table.reused(2)
    source.table.offer(new[2:], [2, 3])
    source.grant("t", new[2:], start=2)
    source.table.reused(block)
    assert not source.intact("t")
    assert eventually(lambda: source.how() == [("t", "void")])
