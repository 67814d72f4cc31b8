"""An operator takes a decode node out of the pool, or puts it back."""

from __future__ import annotations

from kvferry.core.slots_commands import DrainSlot
from kvferry.core.slots_state import Slots
from kvferry.daemon.decisions import Decider
from kvferry.daemon.messages import Answer, Failure, Query
from kvferry.daemon.policy import Policies
from kvferry.daemon.projector import Projector
from kvferry.daemon.standing import NotLeader
from kvferry.errors import LedgerError
from kvferry.ids import ROUTER_SPACE
from kvferry.replay.slots import summarize_slots

DRAIN_VERBS = {"drain": True, "undrain": False}


class Draining:
    """Only the leader can; a replica that stands by names the leader."""

    def __init__(self, projector: Projector, decider: Decider, policies: Policies) -> None:
        self._projector = projector
        self._decider = decider
        self._policies = policies

    async def set(self, query: Query) -> Answer | Failure:
        """Drain or undrain ``query.node``; the answer lists under ``slots`` how it stands now."""
        waited = await self._policies.until_leading()
        if waited is not None:
            return waited
        command = DrainSlot(
            space=ROUTER_SPACE,
            node=query.node,
            drained=DRAIN_VERBS[query.verb],
            who=query.who or "unknown",
        )
        try:
            decision = await self._decider.command(ROUTER_SPACE, command)
        except NotLeader as error:
            return Failure(error=str(error), reason="not_leader", leader=error.leader)
        except LedgerError as error:
            return Failure(error=str(error), reason="ledger")
        if decision.refused:
            return Failure(error=decision.refused, reason="unknown_node")
        space = self._projector.state.spaces.get(ROUTER_SPACE)
        slots = space.slots if space is not None else Slots()
        standing = [one for one in summarize_slots(slots) if one["node"] == query.node]
        return {"slots": standing, "changed": bool(decision.events)}
