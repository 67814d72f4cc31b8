"""The leading coordinator is killed, or frozen and let go on, while plans are asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.chaos.load import Load, failed, outcomes
from tests.chaos.replicas import Replicas, in_order

from kvferry.core.events import PolicySet
from kvferry.core.messages import query_subject
from kvferry.daemon.messages import Query, encode_query
from kvferry.ledger.jetstream import JetStreamLedger


def test_a_killed_leader_is_replaced_and_no_plan_fails(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        first = three.leader()
        three.processes[first].kill()
        second = three.leader(but=first)
        decided = three.query(second, "pause", node="p0")
        assert "error" not in decided, decided
        assert "error" not in three.query(second, "resume", node="p0")
        time.sleep(1.0)  # A span of load, not a wait for something.
        report = load.report()
    history = three.decisions()
    assert in_order(history) == [first, second]
    assert [one.replica for one in history if isinstance(one.event, PolicySet)] == [second] * 2
    # Between pause and resume plans said "paused"; none was late or found nobody.
    assert set(outcomes(report.asked)) <= {"answered", "paused"}
    assert outcomes(report.asked)["answered"] > 100


def test_a_frozen_leader_goes_on_and_decides_nothing_more(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        first = three.leader()
        three.processes[first].freeze()
        # It is asked for a decision that it will make as soon as it goes on, still believing that
        # it leads: the write after its own last one, which is not the last any more.
        late = encode_query(Query(verb="observe", node="p0", who="late"))

        async def leave(ledger: JetStreamLedger) -> None:
            await ledger.publish(query_subject(first), late)
            await asyncio.sleep(0)

        three.use(leave)
        second = three.leader(but=first)
        assert "error" not in three.query(second, "resume", node="p0")
        three.processes[first].thaw()
        standing_by = three.announced(
            lambda heard: first in heard and not heard[first].leader, f"{first} stands by"
        )
        assert standing_by[first].position > 0
        refused = three.query(first, "observe", node="p0")
        assert (refused["reason"], refused["leader"]) == ("not_leader", second)
        report = load.report()
    assert in_order(three.decisions()) == [first, second]
    whose = [one.event.who for one in three.decisions() if isinstance(one.event, PolicySet)]
    assert "late" not in whose
    assert not failed(report.asked), outcomes(report.asked)
