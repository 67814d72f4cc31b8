"""Who decides: elections in the ledger, conflicts, zombies, and replicas that do not fight."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.daemon.support import BOUND_S, SPACE, FakeNode, ask, intrude, quick, running, until

from kvferry.core.commands import SetPolicy
from kvferry.core.events import LeaderElected, NodeClosed, PolicySet
from kvferry.core.messages import Announce
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import ConfigError
from kvferry.ledger.codec import decode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.streams import StreamLimits
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import FACTS_STREAM


async def decisions(log: MemoryLog) -> list[tuple[str, int, object]]:
    found: list[tuple[str, int, object]] = []
    async for stored in log.read(FACTS_STREAM, subject=coord_subject(SPACE)):
        batch = decode(stored.data)
        found += [(batch.node, batch.epoch, entry.event) for entry in batch.entries]
    return found


async def test_the_election_stands_before_the_first_decision() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as coordinator:
        await ask(log, coordinator, verb="pause")
    events = [event for _, _, event in await decisions(log)]
    assert events[0] == LeaderElected(term=1, replica="c-a", cost="learned")
    assert isinstance(events[1], PolicySet)
    assert events[1].term == 1


async def test_two_replicas_come_to_one_leader_and_stay_with_it() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as one, running(log, replica="c-b") as two:
        both = (one, two)

        def settled_on_one() -> bool:
            leading = [c for c in both if c.standing.leading]
            return len(leading) == 1 and leading[0].decider.leads(SPACE)

        await until(settled_on_one, "one of them leads")
        leader = next(c for c in both if c.standing.leading)
        other = next(c for c in both if not c.standing.leading)
        term = leader.projector.state.spaces[SPACE].term
        refused = await ask(log, other, verb="pause")
        assert (refused["reason"], refused["leader"]) == ("not_leader", leader.replica)
        for _ in range(20):
            await asyncio.gather(*(ask(log, leader, verb=v) for v in ("pause", "resume")))
        assert settled_on_one()
        assert leader.projector.state.spaces[SPACE].term == term, "they took it from each other"


async def test_a_standby_takes_over_at_once_after_a_goodbye() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    # Nothing but the goodbye can move the lead within the test: the takeover time is long.
    slow = {"takeover_after_s": 300.0}
    async with running(log, replica="c-b", **slow) as first:
        await until(lambda: first.decider.leads(SPACE), "the first leads")
        async with running(log, replica="c-a", **slow) as second:
            await until(lambda: second.standing.rival() is not None, "the second hears the first")
            await first.stop()
            second.standing._listening_since -= 300.0
            await until(lambda: second.decider.leads(SPACE), "the second takes over")
            assert second.projector.state.spaces[SPACE].term == 2


async def test_no_term_is_given_twice_where_the_stream_lost_its_beginning() -> None:
    log = MemoryLog(StreamLimits(facts_max_bytes=3_000))
    node = FakeNode(log, "p0")
    await node.join()
    async with running(log, replica="c-a") as first:
        await until(lambda: first.decider.leads(SPACE), "the first leads")
        elected = first.decider.term()
    await log.delete("checkpoints")  # Nobody can say any more who led so far.
    while (await log.bounds(FACTS_STREAM)).first <= elected + 3:
        await node.facts(*[NodeClosed(incarnation="other")] * 20)
    async with running(log, replica="c-b") as second:
        await until(lambda: second.decider.leads(SPACE), "the second leads")
        assert second.projector.state.spaces[SPACE].term == second.decider.term()
        assert elected < second.decider.term() <= (await log.bounds(FACTS_STREAM)).last


async def test_a_lead_is_taken_anew_where_the_stream_dropped_every_decision() -> None:
    log = MemoryLog(StreamLimits(facts_max_bytes=3_000))
    node = FakeNode(log, "p0")
    await node.join()
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        elected = coordinator.decider.term()
        while await decisions(log):
            await node.facts(*[NodeClosed(incarnation="other")] * 20)
        # Another replica may have led meanwhile: nothing in the stream says that none did.
        await ask(log, coordinator, verb="pause")
        (_, term, first), *rest = await decisions(log)
        assert first == LeaderElected(term=term, replica="c-a", cost="learned")
        assert term > elected
        assert [type(event) for _, _, event in rest] == [PolicySet]
        assert coordinator.standing.leading


class StillLog(MemoryLog):
    """c-a stands still once it has looked, until the stream has lost what came since."""

    def __init__(self, limits: StreamLimits) -> None:
        super().__init__(limits)
        self.standing_still = asyncio.Event()
        self.go_on = asyncio.Event()

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        if subject == coord_subject(SPACE) and decode(data).node == "c-a":
            self.standing_still.set()
            await self.go_on.wait()
        return await super().append(
            subject, data, message_id=message_id, expected_last=expected_last
        )


async def test_who_stood_still_since_nothing_was_there_gives_no_term_twice() -> None:
    log = StillLog(StreamLimits(facts_max_bytes=3_000))
    node = FakeNode(log, "p0")
    await node.join()
    async with running(log, replica="c-a", decide_timeout_s=BOUND_S) as coordinator:
        await log.standing_still.wait()
        await intrude(log, "c-z", 1, LeaderElected(term=1, replica="c-z"))
        while await decisions(log):
            await node.facts(*[NodeClosed(incarnation="other")] * 20)
        log.go_on.set()
        await until(lambda: coordinator.decider.leads(SPACE), "it leads once the other is silent")
        ((leader, term, _),) = await decisions(log)
        assert (leader, term) == ("c-a", coordinator.decider.term())
        assert term > 1


async def test_a_decision_that_was_overtaken_is_made_afresh() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        # A deposed leader writes between two of our decisions. It is void, but it moved the
        # subject on, so our next append must notice.
        await intrude(log, "c-zombie", 0, PolicySet(term=0, version=9, mode="paused"))
        answer = await ask(log, coordinator, verb="observe")
        assert answer["set"][0]["mode"] == "observe"
        assert coordinator.decider.conflicts == 1
        assert coordinator.projector.state.spaces[SPACE].term == 1
        assert coordinator.projector.state.spaces[SPACE].policy_version == 1


async def test_a_deposed_leader_decides_nothing_more_while_the_new_one_lives() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        await intrude(log, "c-z", 7, LeaderElected(term=7, replica="c-z"))
        coordinator.standing.heard(Announce(replica="c-z", term=7, leader=True, position=0))
        with pytest.raises(NotLeader) as refused:
            await coordinator.decider.command(SPACE, SetPolicy(space=SPACE, mode="paused"))
        assert refused.value.leader == "c-z"
        assert coordinator.projector.state.spaces[SPACE].mode == "on"
        # It falls silent: the lead is taken back, with a higher term.
        await until(lambda: coordinator.decider.leads(SPACE), "it takes the lead back")
        assert coordinator.projector.state.spaces[SPACE].term == 8


async def test_one_replica_leads_several_spaces_without_colliding_message_ids() -> None:
    log = MemoryLog()
    spaces = [f"model-{n:012x}" for n in range(5)]
    for number, space in enumerate(spaces):
        await FakeNode(log, f"p{number}", space=space).join()
    async with running(log) as coordinator:
        await until(lambda: all(coordinator.decider.leads(s) for s in spaces), "it leads all")
        answer = await ask(log, coordinator, verb="pause")
        assert [one["mode"] for one in answer["set"]] == ["paused"] * 5


def test_standing_waits_for_silence_and_yields_to_the_higher_rank() -> None:
    now = 100.0
    standing = Standing("c-m", 3.0, clock=lambda: now)
    assert not standing.update(0, fresh=False)
    now += 3.0
    assert standing.update(0, fresh=False)
    standing.heard(Announce(replica="c-a", term=1, leader=True, position=0))
    assert standing.update(2, fresh=False), "a lower term does not matter"
    standing.heard(Announce(replica="c-z", term=2, leader=True, position=0))
    assert not standing.update(2, fresh=False), "an equal term goes to the later name"
    assert not standing.may_take("c-z")
    now += 2.9
    assert not standing.update(2, fresh=False)
    now += 0.2
    assert standing.update(2, fresh=False)
    assert standing.may_take("c-z")
    standing.heard(Announce(replica="c-m", term=9, leader=True, position=0))
    assert standing.others() == [], "our own echo"


def test_who_could_not_hear_others_stands_down_and_listens_first() -> None:
    now = 100.0
    standing = Standing("c-a", 1.0, clock=lambda: now)
    standing.heard(Announce(replica="c-b", term=0, leader=False, position=0))
    now += 1.0
    standing.note(True, 1)
    now += 0.9
    standing.note(True, 1)
    assert not standing.update(1, fresh=False), "that was a pause: it listens anew"
    now += 0.2
    assert standing.update(1, fresh=False)
    now += 0.7
    standing.note(True, 1)
    assert standing.leading, "a short pause"
    for _ in range(9):
        now += 0.1
        standing.note(False, 1)
    assert standing.leading, "a short loss of the connection"
    now += 0.2
    standing.note(False, 1)
    assert not standing.leading
    # What c-b said long ago, that it does not lead, is no leave to take the lead from it now.
    standing.leading = True
    assert not standing.may_take("c-b")
    now += 1.0
    assert standing.may_take("c-b"), "silence for the whole time"


async def test_an_election_in_the_ledger_is_a_sign_of_life() -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        await intrude(log, "c-z", 2, LeaderElected(term=2, replica="c-z"))
        await until(lambda: not coordinator.standing.leading, "it stands down")
        rival = coordinator.standing.rival()
        assert rival is not None
        assert (rival.replica, rival.term) == ("c-z", 2)


def test_a_fresh_ledger_needs_no_waiting() -> None:
    assert Standing("c-m", 3.0, clock=lambda: 5.0).update(0, fresh=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("replica", "a.b"),
        ("replica", ""),
        ("silent_after_s", 0.0),
        ("takeover_after_s", 0.15),
        ("checkpoints_max", 1),
        ("stop_timeout_s", float("nan")),
    ],
)
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        quick(**{option: value})
