"""Two states compared: everything that differs is told, and nothing else."""

from __future__ import annotations

from tests.unit.daemon.support import SPACE, offer
from tests.unit.replay.writer import PROMPT, Records, pull

from kvferry.core.events import Evicted, NodeLeft, PolicySet, Requested
from kvferry.core.state import ENDED_TRANSFERS_MAX, State, TransferState
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.diff.states import compare
from kvferry.replay.fold import fold_to

GOLDEN = """\
changed policy   policy version from 0 to 1 (+1)
changed policy   term from 0 to 1 (+1)
changed policy   leader from nothing to c-1
changed policy   modes d0 from nothing to paused
changed node     node d0: status from joined to left, why from nothing to silent
added   node     node p1: joined at 127.0.0.1:1, incarnation 00000000000000p1
removed offer    offer d0.1: d0 offers 64 blocks from its cache of request earlier
added   lease    lease p0.1: p0 leases 64 blocks in hbm of request turn-2
added   transfer transfer p0.7: p0 from d0 for request turn-2, moved 64 blocks in 31 ms
changed totals   requests from 0 to 1 (+1)
changed totals   prompt tokens from 0 to 1,060 (+1,060)
changed totals   pulled tokens from 0 to 1,024 (+1,024)
changed totals   computed tokens from 0 to 36 (+36)
changed totals   transfers opened from 0 to 1 (+1)
changed totals   transfers done from 0 to 1 (+1)
changed totals   bytes moved from 0 to 262,144 (+262,144)
changed totals   pins opened from 0 to 1 (+1)
changed totals   events node_joined from 2 to 3 (+1)
changed totals   events retained from 1 to 2 (+1)
changed totals   events requested from 0 to 2 (+2)
changed totals   events transferred from 0 to 1 (+1)
changed totals   events request_ended from 0 to 1 (+1)
changed totals   events node_left from 0 to 1 (+1)
changed totals   events policy_set from 0 to 1 (+1)
changed totals   misses too_dear from 0 to 1 (+1)
changed learned  link samples d0>p0/tcp from 0 to 1 (+1)
"""


async def ledger() -> tuple[MemoryLog, int]:
    """A ledger, and the point before a pull, a departure, a pause and a lease."""
    log = MemoryLog()
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    before = await records.write("d0", offer("d0.1", PROMPT, request="earlier"))
    await records.write("p0", *pull("p0.7", "turn-2", "d0"))
    await records.write("p0", Requested(request="x", wanted=9, miss="too_dear"))
    await records.write("p0", offer("p0.1", PROMPT, request="turn-2", tier="hbm"))
    gone = NodeLeft(term=1, node="d0", incarnation=f"{'d0':0>16}", epoch=1)
    paused = PolicySet(term=1, version=1, mode="paused", node="d0", who="ops")
    await records.write("c-1", gone, paused, lane="coord")
    await records.join("p1")
    return log, before


async def test_two_points_differ_in_what_happened_between_them() -> None:
    log, before = await ledger()
    done = compare(await fold_to(log, to_seq=before), await fold_to(log))
    assert not done.same
    assert done.a.position == before
    assert done.b.position > before
    told = [f"{one.change:<7} {one.kind:<8} {one.text}\n" for one in done.changes]
    assert "".join(told) == GOLDEN
    assert sum(done.counts.values()) == len(done.changes)
    by_id = {one.id: one for one in done.changes}
    assert by_id["p1"].change == by_id["p0.1"].change == "added"
    assert by_id["d0.1"].change == "removed"
    assert by_id["d0"].fields["status"] == ("joined", "left")


async def test_a_shortened_lease_is_told_in_both_directions() -> None:
    log = MemoryLog()
    records = Records(log)
    await records.join("p0")
    await records.write("p0", offer("p0.1", PROMPT, tier="hbm"))
    before = await fold_to(log)
    await records.write("p0", Evicted(offer="p0.1", rev=2, keep=8, reason="pressure", count=56))
    after = await fold_to(log)
    lease = next(one for one in compare(before, after).changes if one.kind == "lease")
    assert lease.text.startswith("lease p0.1: blocks from 64 to 8 (-56), rev from 1 to 2 (+1)")
    # The other way round it is the opposite.
    back = next(one for one in compare(after, before).changes if one.kind == "lease")
    assert back.fields["blocks"] == (8, 64)


async def test_a_state_is_the_same_as_itself_and_as_the_same_facts_stored_elsewhere() -> None:
    (one, _), (other, _) = await ledger(), await ledger()
    a, b = await fold_to(one), await fold_to(other)
    for node in b.spaces[SPACE].nodes.values():
        node.joined_ms += 5_000
    assert compare(a, a).same
    assert compare(a, b).same
    assert not compare(a, State()).same


async def test_transfers_that_a_full_memory_has_forgotten_are_no_difference() -> None:
    def ended(*names: str) -> State:
        state = State()
        space = state.space(SPACE)
        for name in names:
            space.transfers[name] = TransferState(
                transfer=name, request="r", target="p0", target_incarnation="1", source="d0",
                phase="done",
            )  # fmt: skip
        space.ended = list(names)
        return state

    full = ended(*(f"t.{number}" for number in range(1, ENDED_TRANSFERS_MAX + 1)))
    older = ended("t.0", "t.1")
    forgotten = [one.id for one in compare(older, full).changes if one.change == "removed"]
    assert forgotten == []
    few = [one.id for one in compare(older, ended("t.1")).changes if one.change == "removed"]
    assert few == ["t.0"]
