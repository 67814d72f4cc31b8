"""What has to hold over all that nodes wrote, whatever became of servers and coordinators."""

from __future__ import annotations

from tests.chaos.replicas import Replicas

from kvferry.core.envelope import Batch
from kvferry.core.invariants import violations
from kvferry.core.state import State
from kvferry.ledger.codec import decode
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to


def whole(replicas: Replicas) -> State:
    """Assert that each lane counts from 1 without hole or repetition; the state they fold to."""

    async def read(ledger: JetStreamLedger) -> tuple[list[Batch], State]:
        batches = [decode(stored.data) async for stored in ledger.read(FACTS_STREAM)]
        return batches, await fold_to(ledger)

    batches, state = replicas.use(read)
    lanes: dict[tuple[str, str, int, str], list[int]] = {}
    for one in batches:
        key = (one.node, one.incarnation, one.epoch, one.lane)
        lanes.setdefault(key, []).extend(range(one.seq, one.seq + len(one.entries)))
    for lane, seqs in lanes.items():
        if lane[3] == "facts":
            assert sorted(seqs) == list(range(1, len(seqs) + 1)), f"lane {lane} has {seqs}"
    assert violations(state) == []
    return state
