"""Why a request got nothing: every cause has a scenario, and its story is told word for word."""

from __future__ import annotations

from typing import Any

from tests.unit.replay.dated import DatedLog, computed, kept, written
from tests.unit.replay.writer import Records

from kvferry.core.events import (
    AnyEvent,
    Evicted,
    NodeClosed,
    NodeLeft,
    PinEnded,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
)
from kvferry.replay.explain import explain
from kvferry.replay.stories import Story


async def told(
    *moments: tuple[float, str, AnyEvent],
    asked: str = "turn-2",
    nodes: tuple[str, ...] = ("p0", "d0"),
) -> Story:
    """The story after these (second, writer, event); ``c-1`` is the coordinator."""
    log = DatedLog()
    records = Records(log)
    for node in nodes:
        await records.join(node)
    for second, node, event in moments:
        log.now_s = second
        await records.write(node, event, lane="coord" if node == "c-1" else "facts")
    return await explain(log, asked)


def turn_1(session: str = "s-1") -> tuple[tuple[float, str, AnyEvent], ...]:
    return (
        (1.0, "d0", computed("turn-1", 1_000, session=session)),
        (1.0, "d0", kept("d0.1", 64, "turn-1", session)),
    )


def turn_2(
    miss: str = "nothing_held", session: str = "s-1", **numbers: float
) -> tuple[tuple[float, str, AnyEvent], ...]:
    asked = Requested(request="turn-2", wanted=66, miss=miss, session=session, **numbers)  # type: ignore[arg-type]
    return (
        (10.0, "p0", asked),
        (10.4, "p0", computed("turn-2", 1_060, session=session)),
    )


def lost(keep: int = 0, reason: str = "reuse") -> Evicted:
    return Evicted(offer="d0.1", rev=2, keep=keep, reason=reason, count=64 - keep)


def why(story: Story) -> str:
    (cause,) = story.causes
    return cause.text


EVICTED = """\
   1.0 s  d0 offers 64 blocks as d0.1 rev 1 of request turn-1, session s-1
   7.5 s  d0 no longer offers d0.1, 64 blocks gone: the engine needed the memory
  10.0 s  p0, request turn-2: nothing pulled (nothing_held), 66 blocks wanted
  10.4 s  p0 ended request turn-2 (stop): 1,060 prompt tokens = 0 local + 0 pulled + \
1,060 computed, 8 tokens out, first token after 120 ms

p0 answered a prompt of 1,060 tokens: 0 from its own cache, 1,060 computed; nothing was pulled \
because no other node of the space offered any prefix of this prompt
why: evicted: d0 had offered 64 blocks of it (d0.1 of request turn-1); gone after 6.5 s, \
2.5 s before it was wanted: the engine needed the memory
"""


async def test_evicted_tells_when_why_and_how_long_before_it_was_wanted() -> None:
    story = await told(*turn_1(), (7.5, "d0", lost()), *turn_2())
    assert written(story) == EVICTED
    (cause,) = story.causes
    assert (cause.how, cause.source, cause.offer, cause.reason) == (
        "evicted", "d0", "d0.1", "reuse"
    )  # fmt: skip
    assert cause.before_ms == 2_500
    assert cause.ended_ms - cause.offered_ms == 6_500
    assert cause.ended_seq == 5


async def test_a_prompt_without_a_session_is_known_by_its_chain() -> None:
    own = (10.4, "p0", kept("p0.1", 64, "turn-2"))
    story = await told(*turn_1(""), (7.5, "d0", lost()), *turn_2(session=""), own)
    assert why(story) == EVICTED.splitlines()[-1].removeprefix("why: ")
    # Without its chain on record there is nothing that ties it to anything.
    (alone,) = (await told(*turn_1(""), (7.5, "d0", lost()), *turn_2(session=""))).causes
    assert (alone.how, alone.source) == ("nothing_held", "")


async def test_a_run_that_only_lost_its_end_says_what_stayed() -> None:
    story = await told(*turn_1(), (7.5, "d0", lost(keep=8, reason="pressure")), *turn_2())
    assert "8 blocks at its beginning stayed, the rest was gone after 6.5 s, 2.5 s before" in why(
        story
    )
    assert "memory was short" in why(story)


async def test_an_end_that_came_while_it_was_wanted_is_told_as_late() -> None:
    story = await told(*turn_1(), *turn_2("not_offered"), (10.2, "d0", lost()))
    assert story.causes[0].how == "evicted_late"
    assert story.causes[0].before_ms == -200
    assert "200 ms after it was wanted" in why(story)
    # Much later it was for another reason.
    story = await told(*turn_1(), *turn_2("not_offered"), (99.0, "d0", lost()))
    assert story.causes[0].how == "still_held"
    assert "for 9.0 s when it was wanted" in why(story)
    assert "the news" not in why(story)


async def test_an_offer_that_is_quite_new_may_not_have_been_heard_of() -> None:
    late = (9.9, "d0", kept("d0.1", 64, "turn-1", "s-1"))
    story = await told(late, *turn_2())
    assert "for 100 ms when it was wanted; the news may not have come in time" in why(story)


async def test_a_run_that_a_longer_one_covers_is_not_lost_until_that_one_is() -> None:
    longer = (2.0, "d0", kept("d0.2", 64, "turn-1b", "s-1"))
    first = (1.0, "d0", kept("d0.1", 32, "turn-1", "s-1"))
    covered = Evicted(
        offer="d0.1", rev=2, keep=0, reason="superseded", count=32, superseded_by="d0.2"
    )
    story = await told(first, longer, (2.0, "d0", covered), *turn_2())
    assert story.causes[0].how == "still_held"
    end = Evicted(offer="d0.2", rev=2, keep=0, reason="expired", count=64)
    story = await told(first, longer, (2.0, "d0", covered), (6.0, "d0", end), *turn_2())
    assert why(story) == (
        "evicted: d0 had offered 64 blocks of it (d0.2 of request turn-1b); gone after 4.0 s, "
        "4.0 s before it was wanted: its time was over"
    )


async def test_source_gone_says_who_and_for_how_long() -> None:
    gone = NodeLeft(term=1, node="d0", incarnation=f"{'d0':0>16}", epoch=1)
    story = await told(*turn_1(), (8.0, "c-1", gone), *turn_2("node_left"))
    assert story.causes[0].how == "source_gone"
    assert why(story) == (
        "source gone: d0 had offered 64 blocks of it (d0.1 of request turn-1); d0 was declared "
        "gone 2.0 s before it was wanted"
    )
    closed = NodeClosed(incarnation=f"{'d0':0>16}")
    story = await told(*turn_1(), (9.5, "d0", closed), *turn_2())
    assert "d0 was stopped 500 ms before it was wanted" in why(story)


async def test_never_produced_tells_a_first_turn_from_one_that_left_nothing() -> None:
    story = await told(*turn_2())
    assert story.causes[0].how == "never_produced"
    assert "it is the first turn of session s-1" in why(story)
    story = await told(turn_1()[0], *turn_2())
    assert "no earlier turn of session s-1 had left an offer" in why(story)
    # Somebody else's offer is not this prompt's.
    story = await told(*turn_1("s-other"), *turn_2())
    assert story.causes[0].how == "never_produced"


async def test_diverged_says_at_which_token_and_what_was_still_shared() -> None:
    half = kept("p0.1", 32, "turn-2", "s-1")
    own = Retained(
        offer="p0.1", rev=1, tier="cache", count=64, tail=b"x" * 32,
        hashes=half.hashes + b"y" * 32, request="turn-2", session="s-1",
    )  # fmt: skip
    story = await told(*turn_1(), *turn_2("diverged@512"), (10.4, "p0", own))
    assert "from token 512 on" in story.conclusion
    assert why(story) == (
        "diverged at token 512: d0 offered 64 blocks (d0.1 of request turn-1), of which the first "
        "32 are this prompt's"
    )
    assert (story.causes[0].token, story.causes[0].blocks) == (512, 32)
    assert "byte for byte" in story.cure


async def test_too_dear_gives_the_numbers_and_a_late_plan_says_so() -> None:
    dear = turn_2("too_dear", predicted_ms=140.0, recompute_ms=90.0, queue_ms=60.0)
    story = await told(*turn_1(), *dear)
    assert story.conclusion.endswith(
        "(predicted: 140 ms to move, 60 ms of it waiting, against 90 ms to compute)"
    )
    (cause,) = story.causes
    assert (cause.how, cause.predicted_ms, cause.queue_ms) == ("too_dear", 140.0, 60.0)
    assert cause.recompute_ms == 90.0
    story = await told(*turn_1(), *turn_2("plan_late"))
    assert "the coordinator did not answer within the plan's deadline" in story.conclusion
    story = await told(*turn_1(), *turn_2("space_mismatch"))
    assert "do not hold interchangeable KV" in story.conclusion


async def test_what_was_too_dear_beyond_the_own_cache_says_so() -> None:
    numbers: dict[str, float] = {"predicted_ms": 12.0, "recompute_ms": 4.0}
    at: dict[str, Any] = {"source": "d0", "basis": "hint", "weighed_from": 992, "granted": 64}
    story = await told(*turn_1(), *turn_2("too_dear", **numbers, **at))
    said = (
        "its own cache held the first 992 tokens already, and moving what d0 holds beyond them was "
        "predicted to take longer than computing just that (predicted: 12 ms to move from d0 "
        "against 4 ms to compute)"
    )
    assert said in story.conclusion
    assert story.causes[0].text == f"too dear: {said}"
    whole = await told(*turn_1(), *turn_2("too_dear", **numbers, source="d0"))  # type: ignore[arg-type]
    assert "its own cache" not in whole.causes[0].text
    assert whole.causes[0].text.startswith("too dear: moving the blocks was predicted")


async def test_a_failed_transfer_says_where_why_and_what_its_source_lost() -> None:
    asked = Requested(
        request="turn-2", transfer="p0.1", source="d0", wanted=66, granted=64, session="s-1"
    )
    void = TransferFailed(
        transfer="p0.1", request="turn-2", source="d0", stage="settle", reason="void",
        total_ms=31.0, fence="socket_closed",
    )  # fmt: skip
    pin = PinEnded(transfer="p0.1", target="p0", granted=64, how="void", held_ms=30.0)
    moments = (
        *turn_1(),
        (10.0, "p0", asked),
        (10.1, "d0", lost()),
        (10.1, "d0", pin),
        (10.2, "p0", void),
        (10.4, "p0", computed("turn-2", 1_060, session="s-1")),
    )
    story = await told(*moments)
    assert story.conclusion.endswith(
        "a transfer from d0 failed at settle: the source had reused a block before the read was "
        "settled, fenced by socket_closed"
    )
    failed, lost_it = story.causes
    assert (failed.how, failed.stage, failed.reason) == ("transfer_failed", "settle", "void")
    assert (lost_it.how, lost_it.before_ms) == ("evicted_late", -100)
    assert [(one.what, one.ms) for one in story.parts[:2]] == [
        ("pinned for p0", 30.0),
        ("a transfer from d0 that failed at settle", 31.0),
    ]
    alone = await told(*moments, asked="p0.1")
    assert (alone.kind, alone.requests) == ("transfer", ("turn-2",))
    assert alone.conclusion == (
        "transfer p0.1: p0 began to pull 64 of 66 blocks from d0 for request turn-2; d0 held "
        "them for 30 ms and says: blocks were reused meanwhile, the target recomputes; it "
        "failed at settle: the source had reused a block before the read was settled, fenced by "
        "socket_closed; the prompt was computed"
    )


async def test_a_failed_transfer_is_explained_by_its_own_source() -> None:
    """Another node's offer of the same run, which was not asked for, is no reason."""
    asked = Requested(
        request="turn-2", transfer="p0.9", source="d0", wanted=66, granted=64, basis="hint",
        session="s-1",
    )  # fmt: skip
    failed = TransferFailed(
        transfer="p0.9", request="turn-2", source="d0", stage="pin", reason="unreachable"
    )
    moments: list[tuple[float, str, AnyEvent]] = [
        *turn_1(),
        (2.0, "d1", kept("d1.1", 64, "turn-1b", "s-1")),
        (8.0, "c-1", NodeLeft(term=1, node="d0", incarnation=f"{'d0':0>16}", epoch=1)),
        (10.0, "p0", asked),
        (10.1, "p0", failed),
        (10.4, "p0", computed("turn-2", 1_060, "transfer_failed")),
        (12.0, "d1", NodeClosed(incarnation=f"{'d1':0>16}")),
    ]
    gone = await told(*moments, nodes=("p0", "d0", "d1"))
    assert [one.how for one in gone.causes] == ["transfer_failed", "source_gone"]
    assert "d0 was declared gone 2.0 s before it was wanted" in gone.causes[1].text
    lives = await told(*(one for one in moments if one[1] != "c-1"), nodes=("p0", "d0", "d1"))
    assert [one.how for one in lives.causes] == ["transfer_failed"]


async def test_a_request_that_was_aborted_gave_no_answer() -> None:
    ended = RequestEnded(
        request="turn-2", prompt_tokens=1_060, computed_tokens=1_060, outcome="aborted"
    )
    story = await told((10.0, "p0", Requested(request="turn-2", wanted=66)), (10.2, "p0", ended))
    assert story.conclusion == (
        "p0 gave no token for a prompt of 1,060 tokens: the request was aborted before"
    )
    assert story.cure.startswith("nothing to do")
    assert "1,060 left to compute, 0 tokens out" in story.items[-1].text
