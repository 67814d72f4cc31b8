"""What has to hold over everything recorded, whatever was killed, cut or frozen meanwhile.

Call :func:`check` once the living engines are idle; it waits for what is still on its way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable

from tests.e2e.conftest import BLOCK, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Recorded, View

from kvferry.core.digest import digest
from kvferry.core.events import (
    BLOCKS,
    FACTS,
    Gap,
    Inventory,
    NodeClosed,
    NodeJoined,
    PinEnded,
    Requested,
    RequestEnded,
    TransferFailed,
    Transferred,
)
from kvferry.core.invariants import violations
from kvferry.core.state import OPEN
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.replay.audit.live.run import LiveAudit, LiveReport
from kvferry.replay.audit.run import Audit, audit

OWN = (NodeJoined, NodeClosed, Inventory, Gap)
"""What a node's agent writes itself; all else was handed over by the engine."""
BACK_S = 120.0
"""A lease may hold blocks for `lease_ms`, 30 s by default, and a sweep longer."""
AUDIT_PATIENCE_MS = 10_000
"""A lease's end may be told so long after its time: the engine steps, and the step is stored."""


def check(
    plane: View, living: Iterable[EngineProcess], *, unreadable: Collection[int] = ()
) -> list[Recorded]:
    """Assert DESIGN §2.8 over the whole ledger, and that an audit finds nothing; returns its facts.

    ``unreadable`` names the messages that the test itself spoiled: the audit has to find these.
    """
    engines = list(living)
    for engine in engines:
        for probe in ("requests", "open", "reserved", "pins", "waiting"):
            engine.until(probe, lambda left: left == 0)
    facts, blocks = _settled(plane, engines)
    names = {engine.name for engine in engines}
    lanes_are_whole(facts + blocks)
    requests_balance(facts, names)
    transfers_end_once(facts, names)
    pins_end_once(facts, names)
    moved_is_within_requested(facts)
    for engine in engines:
        books_balance(engine, facts, FACTS)
        books_balance(engine, blocks, BLOCKS, gaps_in=facts)
    state_is_sound(plane, names)
    found = audited(plane).violations
    spoiled = [one for one in found if one.invariant == "readable" and one.seq in unreadable]
    assert {one.seq for one in spoiled} == set(unreadable)
    assert [one for one in found if one not in spoiled] == []
    engines_hold_what_the_ledger_says(plane, names)
    return facts


def engines_hold_what_the_ledger_says(plane: View, living: set[str]) -> LiveReport:
    """`kvferry audit --live`: each engine's word and its pool agree with the ledger."""

    async def run(ledger: JetStreamLedger) -> LiveReport:
        return await LiveAudit(ledger, ledger).run()

    report = plane.use(run)
    assert report.findings == (), report.findings
    assert living <= set(report.agreed), report
    return report


def audited(plane: View) -> Audit:
    """What `kvferry audit` says of the ledger."""

    async def run(ledger: JetStreamLedger) -> Audit:
        return await audit(ledger, patience_ms=AUDIT_PATIENCE_MS)

    return plane.use(run)


def _settled(plane: View, engines: list[EngineProcess]) -> tuple[list[Recorded], list[Recorded]]:
    """Both streams, read while no engine had or stored anything: a pin's end may come late."""
    deadline = time.monotonic() + BACK_S
    before = [engine.ask("outbox") for engine in engines]
    while True:
        found = plane.events(), plane.blocks()
        after = [engine.ask("outbox") for engine in engines]
        if before == after and not any(lane.waiting for one in after for lane in one.values()):
            return found
        assert time.monotonic() < deadline, f"something is stored all the time: {after}"
        before = after


def lanes_are_whole(seen: list[Recorded]) -> None:
    """Each lane of each record counts from 1 without a hole and without a repetition."""
    lanes: dict[tuple[str, str, int, str], list[int]] = {}
    for one in seen:
        key = (one.node, one.incarnation, one.epoch, one.lane)
        lanes.setdefault(key, []).append(one.lane_seq)
    for lane, seqs in lanes.items():
        if lane[3] in (FACTS, BLOCKS):
            assert sorted(seqs) == list(range(1, len(seqs) + 1)), f"lane {lane} has {seqs}"


def requests_balance(facts: list[Recorded], living: set[str]) -> None:
    """local + pulled + computed = prompt, and one end for each request of a living node."""
    ends: Counter[tuple[str, str]] = Counter()
    for one in facts:
        event = one.event
        if isinstance(event, RequestEnded):
            ends[one.node, event.request] += 1
            parts = event.local_tokens + event.pulled_tokens + event.computed_tokens
            assert parts == event.prompt_tokens, event
    for one in facts:
        if isinstance(one.event, Requested) and one.node in living and _present(one, facts):
            assert ends[one.node, one.event.request] == 1, one
    assert max(ends.values(), default=0) <= 1, ends


def transfers_end_once(facts: list[Recorded], living: set[str]) -> None:
    """One outcome for each transfer of a node that lived on, and no outcome without a transfer."""
    outcomes = Counter(
        (one.node, one.event.transfer)
        for one in facts
        if isinstance(one.event, Transferred | TransferFailed)
    )
    opened = {}
    for one in facts:
        if isinstance(one.event, Requested) and one.event.transfer:
            key = (one.node, one.event.transfer)
            assert key not in opened, f"{key} was requested twice"
            opened[key] = one
    for key, one in opened.items():
        most = outcomes[key]
        assert most == 1 or (most == 0 and not (one.node in living and _present(one, facts))), one
    assert outcomes.keys() <= opened.keys()


def pins_end_once(facts: list[Recorded], living: set[str]) -> None:
    """A pin that held blocks ended once at its source, if the source lived on."""
    ends: dict[tuple[str, str], list[PinEnded]] = {}
    for one in facts:
        if isinstance(one.event, PinEnded) and one.event.granted:
            ends.setdefault((one.node, one.event.transfer), []).append(one.event)
    for key, found in ends.items():
        assert len(found) == 1, f"pin {key} ended as {found}"
    sources = {
        one.event.transfer: (one.event.source, one.event.source_incarnation)
        for one in facts
        if isinstance(one.event, Requested) and one.event.transfer
    }
    alive_now = _incarnations(facts, living)
    for one in facts:
        event = one.event
        held = isinstance(event, Transferred) or (
            isinstance(event, TransferFailed) and event.stage != "pin"
        )
        if not held:
            continue
        assert isinstance(event, Transferred | TransferFailed)
        source = sources[event.transfer]
        if source[0] == one.node:
            continue  # From its own host tier: nobody else's memory, so no pin.
        if source in alive_now:
            found = ends.get((source[0], event.transfer), [])
            assert len(found) == 1, f"the pin of {event} has no end at {source[0]}"
            if isinstance(event, Transferred):
                assert found[0].how == "intact", (event, found)


def moved_is_within_requested(facts: list[Recorded]) -> None:
    """What was transferred was requested, from that source, and within what was granted."""
    wanted = {
        (one.node, one.event.transfer): one.event
        for one in facts
        if isinstance(one.event, Requested) and one.event.transfer
    }
    for one in facts:
        event = one.event
        if isinstance(event, Transferred):
            asked = wanted[one.node, event.transfer]
            assert (event.source, event.request) == (asked.source, asked.request)
            assert event.tokens == event.count * BLOCK
            assert event.start * BLOCK >= asked.local_tokens
            assert 0 < event.start + event.count <= min(asked.wanted, asked.granted), (event, asked)


def books_balance(
    engine: EngineProcess,
    stored: list[Recorded],
    lane: str,
    gaps_in: list[Recorded] | None = None,
) -> None:
    """handed = stored + declared gaps, and what counts as stored is in the stream."""
    counts = engine.ask("outbox")[lane]
    assert counts.handed == counts.stored + counts.dropped, counts
    mine = [one for one in stored if one.incarnation == engine.ask("incarnation")]
    in_stream = sum(1 for one in mine if one.lane == lane and not isinstance(one.event, OWN))
    assert in_stream == counts.stored, f"{engine.name} {lane}: {in_stream} in the stream, {counts}"
    gaps = sum(
        one.event.count
        for one in (gaps_in if gaps_in is not None else stored)
        if one.node == engine.name and isinstance(one.event, Gap) and one.event.lane == lane
    )
    assert gaps == counts.dropped, f"{engine.name} {lane}: gaps of {gaps}, {counts}"


def state_is_sound(plane: View, living: set[str]) -> None:
    """The fold's own invariants hold, another process folds the same, nothing stays open."""
    state = plane.state()
    assert violations(state) == []
    for space in state.spaces.values():
        assert space.totals.unbalanced == 0
        for transfer in space.transfers.values():
            if transfer.target in living:
                assert transfer.phase != OPEN, transfer
    done = plane.cli("replay", "--to", str(state.position), "--digest")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == digest(state)


def blocks_return(engine: EngineProcess, free_at_start: int) -> None:
    """The engine's free blocks are back at their count, once it steps (an idle one frees none)."""
    deadline = time.monotonic() + BACK_S
    poked = 0
    while (free := engine.ask("free_blocks")) != free_at_start:
        assert time.monotonic() < deadline, f"{engine.name}: {free} free, {free_at_start} before"
        engine.run(f"poke-{engine.name}-{poked}", prompt(poked, 8), tokens=2)
        poked += 1
        time.sleep(0.1)


def _incarnations(facts: list[Recorded], living: set[str]) -> set[tuple[str, str]]:
    """(name, process life) of the living nodes as they are now."""
    return {
        (one.node, one.incarnation)
        for one in facts
        if one.node in living and isinstance(one.event, NodeJoined) and _present(one, facts)
    }


def _present(one: Recorded, facts: list[Recorded]) -> bool:
    """Whether the process that wrote it is the last of its name."""
    last = next(
        other.incarnation
        for other in reversed(facts)
        if other.node == one.node and isinstance(other.event, NodeJoined)
    )
    return one.incarnation == last
