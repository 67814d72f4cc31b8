"""Silence, heartbeats, duplicates, and the off-switch, as nodes on the bus see them."""

from __future__ import annotations

from tests.unit.daemon.support import (
    SPACE,
    FakeNode,
    ask,
    chain,
    offer,
    plan,
    plan_request,
    running,
    settled,
    until,
)

from kvferry.core.apply import cross_hole
from kvferry.core.state import FENCED, JOINED, LEFT
from kvferry.ledger.memory import MemoryLog

PROMPT = chain("talk", 64)


async def test_a_silent_node_is_declared_gone_with_its_offers_and_rejoins() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    async with running(log, silent_after_s=1.5) as coordinator:
        for node in (p0, d0):
            await node.join()
            await node.start()
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).candidates
        await d0.stop()
        space = coordinator.projector.state.spaces[SPACE]
        await until(lambda: space.nodes["d0"].status == LEFT, "d0 is declared gone")
        assert space.nodes["p0"].status == JOINED
        assert "silent" in space.nodes["d0"].why
        assert not [one for one in space.offers.values() if one.node == "d0"]
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).miss == "nothing_held"
        await d0.start()
        await until(
            lambda: any(one.verb == "resync" for one in d0.controls), "d0 is asked to begin anew"
        )
        asked = len([one for one in d0.controls if one.verb == "resync"])
        assert asked == 1, "asked again before it could have answered"
        d0.epoch, d0.seq = 2, 0
        await d0.join()
        await settled(coordinator, await d0.facts(offer("d.2", PROMPT)))
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).candidates
        await p0.stop()
        await d0.stop()


async def test_a_standby_that_missed_messages_asks_for_inventories_itself() -> None:
    log = MemoryLog()
    p0 = FakeNode(log, "p0")
    async with running(log, replica="c-a") as leader:
        await p0.join()
        await until(lambda: leader.decider.leads(SPACE), "the first leads")
        async with running(log, replica="c-b") as standby:
            await until(lambda: standby.standing.rival() is not None, "the second hears the first")
            await until(lambda: not standby.standing.leading, "the second stands by")
            await settled(standby, await p0.facts(offer("p.1", PROMPT)))
            state = standby.projector.state
            cross_hole(state, state.position, state.position)
            assert state.spaces[SPACE].nodes["p0"].status == FENCED
            assert leader.projector.state.spaces[SPACE].nodes["p0"].status == JOINED
            assert not standby.standing.leading
            await p0.start()
            await until(
                lambda: any(one.verb == "resync" for one in p0.controls),
                "p0 is asked to begin anew",
            )
            p0.epoch, p0.seq = 2, 0
            await p0.join()
            await settled(standby, await p0.facts(offer("p.2", PROMPT)))
            assert state.spaces[SPACE].nodes["p0"].status == JOINED
            await p0.stop()


async def test_pause_reaches_nodes_as_control_and_heals_a_lost_one() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    async with running(log) as coordinator:
        for node in (p0, d0):
            await node.join()
        await p0.start()
        last = await d0.facts()
        await settled(coordinator, last)
        answer = await ask(log, coordinator, verb="pause", space=SPACE, who="ops")
        assert [{**one, "keeps": sorted(one["keeps"])} for one in answer["set"]] == [
            {
                "space": SPACE,
                "node": "",
                "mode": "paused",
                "version": 1,
                "changed": True,
                "retention": {},
                "nodes": {"d0": "paused", "p0": "paused"},
                "keeps": ["d0", "p0"],
            }
        ]
        await until(lambda: [c for c in p0.controls if c.mode == "paused"], "p0 hears it")
        # d0 did not listen when the word went out; its next heartbeat brings it.
        await d0.start()
        await until(lambda: [c for c in d0.controls if c.mode == "paused"], "d0 is told again")
        assert {c.version for c in d0.controls if c.verb == "policy"} == {1}
        again = await ask(log, coordinator, verb="pause", space=SPACE)
        assert again["set"][0]["changed"] is False
        await ask(log, coordinator, verb="resume")
        await until(lambda: [c for c in d0.controls if c.mode == "on"], "d0 resumes")
        await p0.stop()
        await d0.stop()


async def test_questions_about_what_does_not_exist_name_the_cure() -> None:
    log = MemoryLog()
    async with running(log) as coordinator:
        nothing = await ask(log, coordinator, verb="pause")
        assert nothing["reason"] == "unknown_space"
        assert "start an engine" in nothing["error"]
        await settled(coordinator, await FakeNode(log, "p0").join() or 1)
        wrong = await ask(log, coordinator, verb="pause", space="x")
        assert SPACE in wrong["error"]
        node = await ask(log, coordinator, verb="pause", node="p7")
        assert (node["reason"], "p0" in node["error"]) == ("unknown_node", True)
        verb = await ask(log, coordinator, verb="explode")
        assert verb["reason"] == "bad_query"


async def test_the_earlier_process_of_a_name_is_told_that_it_is_a_duplicate() -> None:
    log = MemoryLog()
    old, new = FakeNode(log, "p0", "a" * 16), FakeNode(log, "p0", "b" * 16)
    async with running(log) as coordinator:
        await old.join()
        await old.start()
        await new.join()
        await until(
            lambda: [c for c in old.controls if c.verb == "duplicate"], "the earlier one is told"
        )
        assert coordinator.projector.state.spaces[SPACE].nodes["p0"].incarnation == "b" * 16
        await old.stop()


async def test_deadlines_begin_anew_after_the_coordinator_itself_was_stopped() -> None:
    log = MemoryLog()
    p0 = FakeNode(log, "p0")
    async with running(log, silent_after_s=1.0) as coordinator:
        await p0.join()
        await p0.beat()
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        space, liveness = coordinator.projector.state.spaces[SPACE], coordinator.liveness

        def a_minute_passes() -> None:
            liveness._since -= 60.0
            for life in liveness.lives.values():
                life.at -= 60.0
            liveness._wrote.clear()

        # The loop stood still for a minute: no heartbeat could be heard, none is missing.
        a_minute_passes()
        liveness._checked -= 60.0
        await liveness.check()
        assert space.nodes["p0"].status == JOINED
        # It did not stand still, and nothing was heard for a minute.
        a_minute_passes()
        await liveness.check()
        assert space.nodes["p0"].status == LEFT
