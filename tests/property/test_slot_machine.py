"""Routers and rival coordinators around slots: whatever is lost, late or repeated, and whoever
restarts, no two requests believe that they have one node."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.property.slot_model import (
    BY,
    LEADER,
    LOST,
    NAME,
    NAMES,
    REPLICA,
    REPLICAS,
    REQUEST,
    ROUTER,
    ROUTERS,
    Replica,
    Router,
    batch,
)

from kvferry.core.commands import Command, TakeLead
from kvferry.core.decide import Decision, decide
from kvferry.core.digest import digest
from kvferry.core.envelope import Batch
from kvferry.core.events import LeaderElected, SlotChanged
from kvferry.core.invariants import violations
from kvferry.core.slots import (
    ABANDONED,
    CANCELLED,
    CONFIRMED,
    FREE,
    HELD,
    IDLE,
    REFUSED,
    REPLIED,
    SlotNode,
)
from kvferry.core.slots_commands import ChangeSlot, DrainSlot, LendSlot, NameSlot
from kvferry.core.slots_messages import Lent
from kvferry.core.slots_state import held_by
from kvferry.core.snapshot import decode, encode
from kvferry.ids import ROUTER_SPACE


class SlotMachine(RuleBasedStateMachine):
    """All that may happen, in any order."""

    hasty = False
    """The bug of a coordinator that goes by its own deadline alone."""

    @initialize()
    def begin(self) -> None:
        self.log: list[Batch] = []
        self.replicas = {name: Replica() for name in REPLICAS}
        self.routers = {name: Router(name) for name in ROUTERS}
        self.appended = 0
        self.take_lead(REPLICAS[0])
        for name in NAMES:
            self.register(name, LEADER, ROUTERS[0], False)

    @rule(name=REPLICA, share=st.floats(0, 1))
    def read(self, name: str, share: float) -> None:
        replica = self.replicas[name]
        replica.catch_up(self.log, replica.read + round((len(self.log) - replica.read) * share))

    @rule(name=REPLICA)
    def take_lead(self, name: str) -> None:
        self.replicas[name].catch_up(self.log, len(self.log))
        self.decide(name, TakeLead(space=ROUTER_SPACE, replica=name))

    @rule(name=REPLICA)
    def restart_from_snapshot(self, name: str) -> None:
        replica = self.replicas[name]
        replica.state = decode(encode(replica.state))

    def who(self, by: str) -> str:
        """The replica that a rule is about."""
        if by != LEADER:
            return by
        whole = Replica()
        whole.catch_up(self.log, len(self.log))
        name = whole.state.space(ROUTER_SPACE).leader
        self.replicas[name].catch_up(self.log, len(self.log))
        return name

    def leads(self, name: str) -> bool:
        """As far as this replica knows, which may be wrong."""
        return self.replicas[name].state.space(ROUTER_SPACE).leader == name

    def decide(self, name: str, command: Command) -> Decision | None:
        """Decided, stored and folded; None if another replica has written meanwhile."""
        name = self.who(name)
        replica = self.replicas[name]
        if not isinstance(command, TakeLead) and not self.leads(name):
            return None
        made = decide(replica.state, command, now_ms=replica.read)
        if replica.read != len(self.log):  # the log's expected sequence, or the look for it
            return None
        if made.events:
            first = made.events[0][1]
            elected = isinstance(first, LeaderElected)
            term = first.term if elected else replica.state.space(ROUTER_SPACE).term  # type: ignore[union-attr]
            self.appended += 1
            self.log.append(batch(name, term, self.appended, made))
            replica.catch_up(self.log, len(self.log))
        return made

    @rule(name=NAME, by=BY, router=ROUTER, moved=st.booleans())
    def register(self, name: str, by: str, router: str, moved: bool) -> None:
        node = SlotNode(name=name, http=f"http://{name}:{1 + moved}", control=f"{name}:{3 + moved}")
        self.decide(by, NameSlot(space=ROUTER_SPACE, node=node, who=self.routers[router].holder))

    @rule(name=NAME, by=BY, drained=st.booleans())
    def drain(self, name: str, by: str, drained: bool) -> None:
        self.decide(by, DrainSlot(space=ROUTER_SPACE, node=name, drained=drained))

    @rule(by=BY, router=ROUTER, request=REQUEST, first=NAME, lost=LOST)
    def acquire(self, by: str, router: str, request: str, first: str, lost: bool) -> None:
        one = self.routers[router]
        if request in one.believes.values():
            return
        self.lend(by, one, one.next(), request, first, lost)

    @rule(by=BY, again=BY, router=ROUTER, request=REQUEST, first=NAME)
    def acquire_with_a_lost_answer(
        self, by: str, again: str, router: str, request: str, first: str
    ) -> None:
        """The same message once more, to a replica that may be another one."""
        one = self.routers[router]
        if request in one.believes.values():
            return
        number = one.next()
        self.lend(by, one, number, request, first, True)
        self.lend(again, one, number, request, first, False)

    def lend(
        self, by: str, router: Router, number: int, request: str, first: str, lost: bool
    ) -> None:
        command = LendSlot(
            space=ROUTER_SPACE,
            holder=router.holder,
            number=number,
            request=request,
            candidates=(first, *(name for name in NAMES if name != first)),
        )
        by = self.who(by)
        made = self.decide(by, command)
        if made is None or made.refused or lost:
            return
        mine = held_by(self.replicas[by].slots, router.holder)
        (lease,) = [one for one in mine if one.request == request]
        router.believes[Lent(lease.node.name, lease.fence)] = request

    @rule(
        by=BY,
        router=ROUTER,
        change=st.sampled_from((CONFIRMED, ABANDONED)),
        lost=LOST,
    )
    def go_on(self, by: str, router: str, change: str, lost: bool) -> None:
        one = self.routers[router]
        for lent in list(one.believes)[:1]:
            if change == ABANDONED:
                self.forget(one, lent)
            if not lost:
                made = self.say(by, one, lent, change)
                if made is not None and made.refused:
                    self.forget(one, lent)

    @rule(
        by=BY,
        router=ROUTER,
        how=st.sampled_from((REPLIED, CANCELLED, REFUSED)),
        lost=LOST,
    )
    def end(self, by: str, router: str, how: str, lost: bool) -> None:
        one = self.routers[router]
        for lent in list(one.believes)[:1]:
            self.forget(one, lent)
            if not lost:
                self.say(by, one, lent, how)

    @rule(by=BY, router=ROUTER, how=st.sampled_from((REPLIED, CANCELLED, ABANDONED)))
    def end_again(self, by: str, router: str, how: str) -> None:
        one = self.routers[router]
        for lent in one.past:
            self.say(by, one, lent, how)

    @rule(by=BY, router=ROUTER)
    def renew(self, by: str, router: str) -> None:
        """What a coordinator does with the statement of a holder."""
        by = self.who(by)
        one = self.routers[router]
        number, lent = one.next(), tuple(one.believes)
        replica = self.replicas[by]
        if not self.leads(by) or replica.read != len(self.log):
            return
        has = {Lent(s.node.name, s.fence): s for s in held_by(replica.slots, one.holder)}
        for gone in [each for each in lent if each not in has]:
            self.forget(one, gone)
        for each, slot in has.items():
            if each not in lent and slot.number < number:
                self.say(by, one, each, REFUSED if slot.phase == HELD[0] else ABANDONED)

    @rule(router=ROUTER)
    def die(self, router: str) -> None:
        """Its process is gone without a word; what it believed is believed no more."""
        one = self.routers[router]
        self.routers[router] = Router(router, life=one.life + 1, past=[*one.past, *one.believes])

    @rule(by=BY, name=NAME)
    def see_idle(self, by: str, name: str) -> None:
        """The limit is over: nobody who was silent for so long would still act."""
        by = self.who(by)
        slot = self.replicas[by].slots.nodes.get(name)
        if slot is None or slot.phase == FREE:
            return
        lent = Lent(name, slot.fence)
        believed = any(lent in one.believes for one in self.routers.values())
        if believed and not self.hasty:
            return
        command = ChangeSlot(space=ROUTER_SPACE, node=name, fence=slot.fence, change=IDLE)
        self.decide(by, command)

    def say(self, by: str, router: Router, lent: Lent, change: str) -> Decision | None:
        return self.decide(
            by,
            ChangeSlot(
                space=ROUTER_SPACE,
                node=lent.node,
                fence=lent.fence,
                change=change,
                holder=router.holder,
            ),
        )

    def forget(self, router: Router, lent: Lent) -> None:
        del router.believes[lent]
        router.past.append(lent)

    # --- what must hold ----------------------------------------------------------------------

    @invariant()
    def a_node_is_with_one_request_at_most(self) -> None:
        users = [lent.node for one in self.routers.values() for lent in one.believes]
        assert len(users) == len(set(users)), "two requests would act on one node"

    @invariant()
    def what_is_believed_is_in_the_ledger(self) -> None:
        whole = Replica()
        whole.catch_up(self.log, len(self.log))
        for one in self.routers.values():
            for lent, request in one.believes.items():
                slot = whole.slots.nodes[lent.node]
                assert (slot.phase in HELD, slot.fence, slot.holder, slot.request) == (
                    True,
                    lent.fence,
                    one.holder,
                    request,
                )
        assert violations(whole.state) == []
        for replica in self.replicas.values():
            assert violations(replica.state) == []
            if replica.read == whole.read:
                assert digest(replica.state) == digest(whole.state)

    @invariant()
    def no_fence_is_given_twice(self) -> None:
        events = [entry.event for stored in self.log for entry in stored.entries]
        given = [e.fence for e in events if isinstance(e, SlotChanged) and e.change == "granted"]
        assert given == sorted(set(given))


TestSlotMachine = SlotMachine.TestCase


class HastyMachine(SlotMachine):
    """The same with the bug."""

    hasty = True


def test_a_slot_freed_on_our_own_deadline_is_found() -> None:
    """The invariants have teeth."""
    searching = settings(phases=[Phase.generate], report_multiple_bugs=False, max_examples=100)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(HastyMachine, settings=searching)
