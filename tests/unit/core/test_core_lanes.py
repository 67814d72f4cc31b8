"""Lane contiguity: duplicates, reordering, holes, records of other processes."""

from __future__ import annotations

from tests.unit.core.support import SPACE, Ledger, Writer, retained, started

from kvferry.core.digest import digest
from kvferry.core.events import BLOCKS, Gap, Produced, RequestEnded
from kvferry.core.state import HELD_BATCHES_MAX


def ended(name: str) -> RequestEnded:
    return RequestEnded(request=name, prompt_tokens=10, computed_tokens=10)


def requests(ledger: Ledger) -> int:
    return ledger.space.totals.requests


def test_a_duplicate_changes_nothing() -> None:
    ledger, (node,) = started("p0")
    batch = node.batch(ended("r1"), ended("r2"))
    assert len(ledger.append(batch)) == 2
    before = digest(ledger.state)
    assert ledger.append(batch) == []
    assert digest(ledger.state) == before
    assert ledger.state.dropped == {"duplicate": 1}


def test_a_late_batch_closes_the_hole_and_order_is_kept() -> None:
    ledger, (node,) = started("p0")
    first, second, third = (node.batch(ended(name)) for name in ("r1", "r2", "r3"))
    assert ledger.append(third) == []
    assert ledger.append(second) == []
    applied = ledger.append(first)
    assert [one.entry.event.request for one in applied] == ["r1", "r2", "r3"]  # type: ignore[union-attr]
    assert [one.seq for one in applied] == [2, 3, 4]
    # Held batches keep the position at which they were stored.
    assert [one.position.stream_seq for one in applied] == [5, 4, 3]


def test_only_the_new_part_of_an_overlapping_batch_is_applied() -> None:
    ledger, (node,) = started("p0")
    node.write(ended("r1"))
    node.next_seq = 2
    applied = node.write(ended("r1"), ended("r2"))
    assert [one.seq for one in applied] == [3]
    assert requests(ledger) == 2


def test_an_overlapping_held_batch_is_cut_too() -> None:
    _, (node,) = started("p0")
    node.next_seq = 3
    node.write(ended("r2"), ended("r3"))
    node.next_seq = 2
    applied = node.write(ended("r1"), ended("r2"))
    assert [one.seq for one in applied] == [2, 3, 4]


def test_a_full_window_of_held_batches_is_no_reason_to_fence() -> None:
    ledger, (node,) = started("p0")
    first = node.batch(ended("r0"))
    for number in range(HELD_BATCHES_MAX):
        node.write(ended(f"r{number}"))
    assert ledger.node("p0").status == "joined"
    assert len(ledger.append(first)) == HELD_BATCHES_MAX + 1


def test_a_hole_that_stays_fences_until_the_next_epoch() -> None:
    ledger, (node,) = started("p0")
    node.write(retained("p0-a.1"))
    lost = node.batch(ended("lost"))
    for number in range(HELD_BATCHES_MAX + 1):
        node.write(ended(f"r{number}"))
    fenced = ledger.node("p0")
    assert (fenced.status, fenced.why) == ("fenced", "facts 3 to 3 of epoch 1 are missing")
    assert ledger.append(lost) == []
    assert node.write(ended("later")) == []
    assert ledger.state.dropped == {"fenced": 2}
    assert "p0-a.1" in ledger.space.offers  # not trusted, but not known to be gone
    node.join()
    assert ledger.node("p0").status == "joined"
    assert len(node.write(ended("again"))) == 1


def test_a_record_may_arrive_before_its_beginning() -> None:
    ledger = Ledger()
    node = Writer(ledger, "p0")
    node.epoch = 1
    node.next_seq = 2
    assert node.write(ended("r1")) == []
    assert ledger.space.nodes == {}
    node.epoch = 0
    applied = node.join()
    assert [one.seq for one in applied] == [1, 2]
    assert ledger.space.early == {}
    assert ledger.node("p0").facts_seq == 2


def test_a_record_without_its_beginning_is_never_believed() -> None:
    ledger = Ledger()
    node = Writer(ledger, "p0")
    node.epoch = 1
    assert node.write(ended("r1")) == []
    assert node.write(ended("r2")) == []
    assert ledger.state.dropped == {"not_begun": 1, "fenced": 1}
    node.join()
    assert ledger.node("p0").epoch == 2


def test_the_later_process_of_one_name_wins() -> None:
    ledger, (first,) = started("p0")
    second = Writer(ledger, "p0", incarnation="p0-b")
    second.join()
    assert first.write(ended("r1")) == []
    assert first.join() == []  # also its next epoch: it was superseded
    assert len(second.write(ended("r2"))) == 1
    assert ledger.node("p0").incarnation == "p0-b"
    assert ledger.state.dropped == {"superseded": 2}


def test_facts_of_an_earlier_epoch_are_void() -> None:
    ledger, (node,) = started("p0")
    late = node.batch(ended("late"))
    node.join()
    assert ledger.append(late) == []
    assert requests(ledger) == 0


def test_a_next_epoch_may_overtake_the_end_of_the_last() -> None:
    ledger, (node,) = started("p0")
    node.epoch, node.next_seq = 2, 2
    node.write(Gap(lane="facts", count=3))
    node.epoch = 1
    assert len(node.join()) == 2
    assert (ledger.node("p0").epoch, ledger.space.totals.gaps) == (2, {"facts": 3})


def test_the_blocks_lane_is_another_stream() -> None:
    ledger, (node,) = started("p0")
    before, position = digest(ledger.state), ledger.state.position
    batch = node.batch(Produced(request="r", start=0, count=1, tail=b""))
    blocks = type(batch)(
        **{f: getattr(batch, f) for f in batch.__struct_fields__} | {"lane": BLOCKS}
    )
    assert ledger.append(blocks) == []
    assert (digest(ledger.state), ledger.state.position) == (before, position)


def test_an_empty_batch_and_a_space_of_void_facts_do_no_harm() -> None:
    ledger, (node,) = started("p0")
    assert node.write() == []
    assert set(ledger.state.spaces) == {SPACE}
