"""Modes and how nodes keep: an operator's word becomes a decision, and is told to the nodes."""

from __future__ import annotations

import asyncio

from kvferry.core.commands import SetPolicy, SetRetention
from kvferry.core.state import JOINED, MODE_OBSERVE, MODE_ON, MODE_PAUSED, SpaceState
from kvferry.daemon.decisions import Decider
from kvferry.daemon.messages import Answer, Failure, Query
from kvferry.daemon.projector import Projector
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import LedgerError
from kvferry.ids import ROUTER_SPACE
from kvferry.replay.retained import keeps

MODE_VERBS = {"pause": MODE_PAUSED, "resume": MODE_ON, "observe": MODE_OBSERVE}
KEEP = "keep"
VERBS = (*MODE_VERBS, KEEP)
LEADER_POLL_S = 0.05


class Policies:
    """Sets modes and how nodes keep. Only the leader can; a replica that stands by names the
    leader."""

    def __init__(
        self,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        *,
        leader_wait_s: float,
    ) -> None:
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self._leader_wait_s = leader_wait_s

    async def set(self, query: Query) -> Answer | Failure:
        """Put a policy in force for a space or a node, or for all spaces with ``space`` empty.

        The answer lists under ``set`` what is in force now, with the policy's version, and the
        mode and how it keeps of each joined node.
        """
        spaces = self._spaces(query)
        if isinstance(spaces, Failure):
            return spaces
        waited = await self.until_leading()
        if waited is not None:
            return waited
        done: list[Answer] = []
        for name in spaces:
            try:
                decision = await self._decider.command(name, _command(name, query))
            except NotLeader as error:
                return Failure(error=str(error), reason="not_leader", leader=error.leader)
            except LedgerError as error:
                return Failure(error=str(error), reason="ledger")
            if decision.refused:
                return Failure(error=decision.refused, reason="refused")
            done.append(self._in_force(name, query.node, bool(decision.events)))
        return {"set": done}

    def _spaces(self, query: Query) -> list[str] | Failure:
        known = {
            name: space
            for name, space in sorted(self._projector.state.spaces.items())
            if name != ROUTER_SPACE
        }
        if not known:
            return Failure(
                error="no node has joined yet, so there is no space to set a mode for; start an "
                "engine first",
                reason="unknown_space",
            )
        if query.space and query.space not in known:
            return Failure(
                error=f"there is no space {query.space!r}; known spaces: {', '.join(known)}",
                reason="unknown_space",
            )
        spaces = [query.space] if query.space else list(known)
        if not query.node:
            return spaces
        having = [name for name in spaces if query.node in known[name].nodes]
        if not having:
            names = sorted({node for name in spaces for node in known[name].nodes})
            return Failure(
                error=f"there is no node {query.node!r}; known nodes: {', '.join(names)}",
                reason="unknown_node",
            )
        # A node that changed its model is known in two spaces; its mode belongs to where it is.
        joined = [name for name in having if known[name].nodes[query.node].status == JOINED]
        return joined or having

    async def until_leading(self) -> Failure | None:
        """A coordinator that just started leads within its takeover time; wait for that."""
        deadline = asyncio.get_running_loop().time() + self._leader_wait_s
        while not self._standing.leading:
            rival = self._standing.rival()
            late = asyncio.get_running_loop().time() >= deadline
            if rival is not None or late:
                leader = rival.replica if rival is not None else ""
                return Failure(
                    error=f"coordinator {self._standing.replica} does not lead; "
                    + (f"ask {leader}" if leader else "ask again in a few seconds"),
                    reason="not_leader",
                    leader=leader,
                )
            await asyncio.sleep(LEADER_POLL_S)
        return None

    def _in_force(self, name: str, node: str, changed: bool) -> Answer:
        space = self._projector.state.spaces.get(name) or SpaceState()
        nodes = sorted(space.nodes.values(), key=lambda n: n.name)
        joined = [one for one in nodes if one.status == JOINED and node in ("", one.name)]
        return {
            "space": name,
            "node": node,
            "mode": space.mode_of(node) if node else space.mode,
            "version": space.policy_version,
            "changed": changed,
            "retention": (space.retention_of(node) if node else space.retention).given(),
            "nodes": {one.name: space.mode_of(one.name) for one in joined},
            "keeps": {one.name: keeps(space, one) for one in joined},
        }


def _command(space: str, query: Query) -> SetPolicy | SetRetention:
    """What the leader is to decide."""
    who = query.who or "unknown"
    if query.verb == KEEP:
        return SetRetention(
            space=space, settings=query.settings, unset=query.unset, node=query.node, who=who
        )
    return SetPolicy(space=space, mode=MODE_VERBS[query.verb], node=query.node, who=who)
