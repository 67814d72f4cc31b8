"""What lies behind a miss: leases, hints, tenants, spaces, fences, and where a prompt departs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.daemon.support import BLOCK, SPACE, STRIDE
from tests.unit.replay.dated import TALK, DatedLog, computed, kept
from tests.unit.replay.writer import Records

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    NodeJoined,
    PinEnded,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
)
from kvferry.core.state import HELD_BATCHES_MAX
from kvferry.ids import short_hashes
from kvferry.ledger.codec import encode
from kvferry.ledger.subjects import facts_subject
from kvferry.replay.cures import cure_of
from kvferry.replay.explain import explain
from kvferry.replay.inorder import in_order
from kvferry.replay.stories import MissCause, Story

OTHER = "other-0123456789ab"


class Told:
    """A ledger that is written second by second, and the story of ``turn-2`` on ``p0``."""

    def __init__(self) -> None:
        self.log = DatedLog()
        self.records = Records(self.log)

    async def begin(self) -> Told:
        for node in ("p0", "d0"):
            await self.records.join(node)
        return self

    async def at(self, second: float, node: str, *events: AnyEvent, **where: Any) -> None:
        self.log.now_s = second
        await self.records.write(node, *events, **where)

    async def wanted(self, miss: str, **fields: Any) -> Story:
        """p0 wants the talk at second 10 and computes it."""
        own = msgspec.structs.replace(
            kept("p0.1", 64, "turn-2"), tenant=str(fields.get("tenant", ""))
        )
        asked: dict[str, Any] = {"request": "turn-2", "wanted": 64, "miss": miss, **fields}
        await self.at(10.0, "p0", Requested(**asked))
        ended = computed("turn-2", 64 * BLOCK, miss, session=str(fields.get("session", "")))
        await self.at(10.4, "p0", own, ended)
        return await explain(self.log, "turn-2")


def only(story: Story) -> MissCause:
    (cause,) = story.causes
    return cause


def lost(offer: str, reason: str = "reuse", by: str = "") -> Evicted:
    return Evicted(offer=offer, rev=2, keep=0, reason=reason, superseded_by=by)


def foreign(offer: str, request: str = "turn-1", **fields: Any) -> Retained:
    """An offer of blocks that the talk does not have."""
    made = Retained(
        offer=offer, rev=1, tier="cache", count=40, tail=b"z" * 32, hashes=b"z" * 8 * 5,
        request=request,
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize("reason", ["expired", "session_end"])
async def test_a_lease_that_ended_does_not_evict_but_is_told(reason: str) -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    lease = msgspec.structs.replace(kept("d0.1L1", 64, "turn-1", tier="hbm"), ttl_ms=2_000)
    await told.at(1.0, "d0", lease)
    await told.at(3.0, "d0", lost("d0.1L1", reason))
    assert only(await told.wanted("nothing_held")).how == "still_held", "the cache has it yet"
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"), lease)
    await told.at(3.0, "d0", lost("d0.1L1", reason))
    await told.at(8.0, "d0", lost("d0.1"))
    story = await told.wanted("nothing_held")
    cause = only(story)
    assert (cause.how, cause.reason, cause.before_ms) == ("evicted", "reuse", 2_000)
    assert (cause.ended_ms - cause.lease_ended_ms, cause.lease_reason) == (5_000, reason)
    assert "gone after 7.0 s, 2.0 s before it was wanted" in cause.text
    assert "its lease had ended 5.0 s earlier" in cause.text
    assert [one.event for one in story.items] == [
        "retained", "retained", "evicted", "evicted", "requested", "retained", "request_ended"
    ]  # fmt: skip
    assert "give d0 more KV blocks" in story.cure


async def test_what_a_hint_named_is_followed_to_the_longer_run_that_covered_it() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 32, "turn-0"))
    await told.at(2.0, "d0", kept("d0.2", 64, "turn-1"), lost("d0.1", "superseded", "d0.2"))
    await told.at(9.0, "d0", lost("d0.2", "pressure"))
    # The request left no trace of its own chain: only the hint ties it to anything.
    await told.at(10.0, "p0", Requested(request="r", wanted=64, miss="not_offered", hinted="d0.1"))
    await told.at(10.1, "p0", RequestEnded(request="r", prompt_tokens=9, computed_tokens=9))
    cause = only(await explain(told.log, "r"))
    assert (cause.how, cause.offer, cause.reason) == ("evicted", "d0.2", "pressure")
    assert "memory was short" in cause.text


async def test_a_hint_of_another_prompt_diverges_at_its_first_token() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", foreign("d0.1"))
    cause = only(await told.wanted("not_offered", hinted="d0.1"))
    assert (cause.how, cause.token, cause.source) == ("diverged", 0, "d0")
    assert cause.text == (
        "diverged at token 0: the hint named d0's 40 blocks as d0.1 of request turn-1, but this "
        "prompt's first block differs"
    )
    # Nothing ties it to an offer that no hint named.
    assert only(await told.wanted("not_offered")).how == "never_produced"


async def test_another_space_is_refused_with_what_differs() -> None:
    told = await Told().begin()
    for node, space, dtype in (("p1", SPACE, "float32"), ("d1", OTHER, "bfloat16")):
        joined = NodeJoined(
            incarnation=f"{node:0>16}", epoch=1, address="a:1", block_size=BLOCK,
            components={"dtype": dtype, "model": "m"},
        )  # fmt: skip
        await told.at(0.5, node, joined, space=space)
    await told.at(1.0, "d1", foreign("d1.1"), space=OTHER)
    asked = Requested(request="r", wanted=64, miss="space_mismatch", hinted="d1.1")
    ended = RequestEnded(request="r", prompt_tokens=9, computed_tokens=9, miss="space_mismatch")
    await told.at(10.0, "p1", asked, ended)
    cause = only(await explain(told.log, "r"))
    assert (cause.how, cause.reason) == ("refused", "space")
    assert (cause.source, cause.source_space) == ("d1", OTHER)
    assert cause.differs == ("dtype: float32 here, bfloat16 there",)
    assert "d1's KV is not interchangeable with that of p1: dtype: float32 here" in cause.text


async def test_a_source_whose_record_had_a_hole_was_refused_by_fence() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    assert only(await told.wanted("nothing_held")).how == "still_held"
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    told.records._next[SPACE, "d0", "facts"] += 3  # Three facts that the ledger never got.
    for number in range(HELD_BATCHES_MAX + 1):
        await told.at(2.0, "d0", computed(f"after-{number}", 9))
    cause = only(await told.wanted("nothing_held"))
    assert (cause.how, cause.reason, cause.source) == ("refused", "fence", "d0")
    assert cause.text == (
        "refused: fenced: d0 had offered 64 blocks of it (d0.1 of request turn-1) for 9.0 s when "
        "it was wanted, but the record of d0 had a hole (facts 3 to 5 of epoch 1 are missing), so "
        "that no plan named it before it had listed anew what it holds"
    )


async def test_what_ended_after_a_plan_is_not_why_the_plan_knew_nothing() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    await told.wanted("nothing_held")
    await told.at(11.0, "d0", lost("d0.1"))
    assert only(await explain(told.log, "turn-2")).how == "still_held"


async def test_a_prefix_shorter_than_a_sample_is_found_by_hint_only() -> None:
    told = await Told().begin()
    short = kept("d0.1", STRIDE, "turn-1")
    await told.at(1.0, "d0", msgspec.structs.replace(short, count=STRIDE - 1))
    cause = only(await told.wanted("nothing_held"))
    assert cause.how == "still_held"
    assert f"plans know one block in {STRIDE}" in cause.text


async def test_a_request_that_pulled_a_part_is_told_where_the_rest_departs() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    mine = TALK[:32] + [bytes([n]) * 32 for n in range(32)]
    asked = Requested(
        request="turn-2", transfer="p0.7", source="d0", wanted=64, granted=32, basis="hint"
    )
    ended = RequestEnded(
        request="turn-2", prompt_tokens=64 * BLOCK, pulled_tokens=32 * BLOCK,
        computed_tokens=32 * BLOCK, source="d0",
    )  # fmt: skip
    own = Retained(
        offer="p0.1", rev=1, tier="cache", count=64, tail=mine[-1],
        hashes=short_hashes(mine, STRIDE), request="turn-2",
    )  # fmt: skip
    await told.at(10.0, "p0", asked, own, ended)
    cause = only(await explain(told.log, "turn-2"))
    assert (cause.how, cause.token, cause.blocks) == ("diverged", 32 * BLOCK, 32)
    # The control: its source had no more, for the rest is simply new.
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 32, "turn-1"))
    await told.at(10.0, "p0", asked, own, ended)
    assert (await explain(told.log, "turn-2")).causes == ()


async def test_what_was_there_when_a_plan_came_late_is_told() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", kept("d0.1", 64, "turn-1"))
    cause = only(await told.wanted("plan_late"))
    assert (cause.how, cause.source, cause.blocks) == ("plan_late", "d0", 64)
    assert cause.waited_ms == 10.0, "first token after 120 ms, of which computing took 110"
    assert cause.text.endswith("it waited for 10 ms; d0 had offered 64 blocks of it (d0.1)")
    told = await Told().begin()
    assert only(await told.wanted("plan_late")).source == ""


@pytest.mark.parametrize(
    ("reason", "word"),
    [("void", "lease_budget"), ("digest", "network"), ("unreachable", "ports"), ("odd", "logs")],
)
def test_a_failure_has_a_cure_that_names_its_source(reason: str, word: str) -> None:
    cure = cure_of("transfer_failed", reason, "d0")
    assert word in cure
    assert "d0" in cure
    assert "{source}" not in cure


async def test_a_message_of_a_newer_version_is_told_with_the_version_that_it_needs() -> None:
    told = await Told().begin()
    data = encode(
        Batch(
            space=SPACE, node="d0", incarnation="i", epoch=1, lane="facts", seq=9,
            entries=(Entry(event=lost("x")),),
        )
    )  # fmt: skip
    newer = msgspec.msgpack.decode(data)
    newer[7][0][1] = 7
    subject = facts_subject(SPACE, "d0")
    await told.log.append(subject, msgspec.msgpack.encode(newer), message_id="newer")
    story = await told.wanted("too_dear")
    assert story.unread == 1
    assert "message 3: event 'evicted' version 7" in story.unread_why
    assert "a kvferry with version 7 of it is needed" in story.unread_why
    assert (await explain(told.log, "nobody-knows-me")).unread == 1


async def test_no_effect_stands_before_its_cause() -> None:
    told = await Told().begin()
    asked = Requested(request="r", transfer="t", source="d0", wanted=9, granted=9)
    pin = PinEnded(transfer="t", target="p0", granted=9, how="abort")
    failed = TransferFailed(transfer="t", request="r", source="d0", stage="read", reason="digest")
    made = Produced(request="r", start=0, count=9, tail=b"x" * 32)
    await told.at(1.0, "d0", pin)
    await told.at(1.2, "p0", asked, failed, computed("r", 9))
    await told.at(1.4, "p0", made, lane="blocks")
    story = await explain(told.log, "r")
    assert [one.event for one in story.items] == [
        "requested", "pin_ended", "transfer_failed", "produced", "request_ended"
    ]  # fmt: skip
    by = [one.by_ms for one in story.items]
    assert by == sorted(by), "each had happened when the next had"
    assert by[0] == story.items[1].stored_ms < story.items[0].stored_ms
    assert in_order([]) == []


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("intact", ["requested", "pin_ended", "request_ended"]),
        ("deadline", ["requested", "request_ended", "pin_ended"]),
    ],
)
async def test_a_pin_that_was_asked_about_ended_before_its_request_did(
    how: str, order: list[str]
) -> None:
    told = await Told().begin()
    pin = PinEnded(transfer="t", target="p0", granted=9, how=how, held_ms=50.0)
    asked = Requested(
        request="r", transfer="t", source="d0", wanted=9, granted=9, backend="tcp", basis="hint"
    )
    await told.at(1.0, "p0", asked, computed("r", 9))
    await told.at(1.4, "d0", pin)
    story = await explain(told.log, "r")
    assert [one.event for one in story.items] == order
