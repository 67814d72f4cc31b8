"""When a node is asked to begin anew: damped, and surely when its record waits for ever."""

from __future__ import annotations

from tests.unit.daemon.support import BLOCK, SPACE, chain, offer

from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import AnyEvent, NodeJoined, Retained
from kvferry.core.messages import Heartbeat
from kvferry.core.state import State
from kvferry.daemon.resync import RESYNC_AFTER_S, RESYNC_EVERY_S, STUCK_AFTER_S, ResyncTimer

LIFE = "a" * 16
KEY = (SPACE, "p0")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def put(state: State, seq: int, event: AnyEvent, life: str = LIFE) -> None:
    batch = Batch(
        space=SPACE,
        node="p0",
        incarnation=life,
        epoch=1,
        lane="facts",
        seq=seq,
        entries=(Entry(event=event),),
    )
    apply_batch(state, batch, Position(state.position + 1, 1))


def joined(life: str = LIFE) -> NodeJoined:
    return NodeJoined(incarnation=life, epoch=1, address="127.0.0.1:1", block_size=BLOCK)


def fact() -> Retained:
    return offer("p0.1", chain("talk", 16))


def beat(life: str = LIFE) -> Heartbeat:
    return Heartbeat(node="p0", space=SPACE, incarnation=life, epoch=1)


def test_a_resync_is_sent_after_a_while_and_not_twice_in_a_row() -> None:
    clock = Clock()
    timer = ResyncTimer(clock)
    assert not timer.due(KEY)
    clock.now += RESYNC_AFTER_S
    assert timer.due(KEY)
    clock.now += RESYNC_EVERY_S / 2
    assert not timer.due(KEY)
    clock.now += RESYNC_EVERY_S / 2
    assert timer.due(KEY)
    timer.in_step(KEY)
    clock.now += RESYNC_EVERY_S
    assert not timer.due(KEY), "out of step again: the wait begins anew"


def test_a_hole_that_stays_is_told_and_one_that_closes_is_not() -> None:
    clock, state = Clock(), State()
    timer = ResyncTimer(clock)
    put(state, 1, joined())
    assert timer.stuck(state, beat()) == ""
    put(state, 3, fact())
    assert timer.stuck(state, beat()) == ""
    clock.now += STUCK_AFTER_S - 1
    assert timer.stuck(state, beat()) == ""
    put(state, 2, fact())
    clock.now += 1
    assert timer.stuck(state, beat()) == "", "it closed"
    put(state, 5, fact())
    timer.stuck(state, beat())
    clock.now += STUCK_AFTER_S
    assert "facts after 3" in timer.stuck(state, beat())


def test_a_record_without_a_beginning_is_told_but_never_a_superseded_process() -> None:
    clock, state = Clock(), State()
    timer = ResyncTimer(clock)
    put(state, 7, fact())
    assert timer.stuck(state, beat()) == ""
    clock.now += STUCK_AFTER_S
    assert "beginning" in timer.stuck(state, beat())
    put(state, 1, joined())
    put(state, 1, joined("b" * 16), "b" * 16)
    for life in (LIFE, "b" * 16):
        timer.stuck(state, beat(life))
        clock.now += STUCK_AFTER_S
        assert timer.stuck(state, beat(life)) == ""
