"""What a request of the ledger does under a policy: where its prefix comes from, what it computes.

Where the ledger says that a circumstance decided (no coordinator, a switched-off reuse, a plan that
came late) it decides again, whatever the policy is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvferry.core.advising import pair_pays_from, pair_rest
from kvferry.core.cost import link_cost, pair_key
from kvferry.core.inflight import Flow, InFlight, service_ms
from kvferry.core.placement import Ranked
from kvferry.core.planning import TOO_DEAR, Holder, Need, plan_prefix
from kvferry.replay.whatif.fleet import Fleet
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.memory import Engine

HANDOVER, HINT, PLAN = "handover", "hint", "plan"
MOVED_MAX = 100_000
"""Sessions of extra nodes that are remembered."""
HOLDERS_MAX = 32
"""Nodes that are weighed, those with the longest prefix."""
HOST_COPY = ("host_copy",)
BARRED = frozenset(
    {
        "aborted",
        "bad_hint",
        "no_coordinator",
        "observe",
        "outbox_full",
        "paused",
        "peer_unreachable",
        "plan_late",
        "policy_unset",
        "prefill_late",
        "reuse_off",
        "space_mismatch",
        "unshareable",
        "unused",
    }
)
"""Misses that no retention and no cost decides about."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one request gets under a policy, in tokens and milliseconds."""

    node: str
    local: int
    pulled: int = 0
    from_host: int = 0
    """Of ``pulled``, what its own host memory gives: nothing crosses a link for it."""
    source: str = ""
    bytes: int = 0
    """That cross a link."""
    move_ms: float = 0.0
    compute_ms: float = 0.0
    prompt: int = 0

    @property
    def had(self) -> int:
        """Tokens of the prompt that need not be computed."""
        return self.local + self.pulled


class _Pull(msgspec.Struct, frozen=True):
    source: str
    end: int
    """In units from the prompt's first."""
    queue_ms: float = 0.0


class Chooser:
    """Decides for the requests of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._moves = InFlight()
        self._moved: dict[str, tuple[str, str]] = {}
        """Sessions that run on an extra node: the node where they ran, and that one."""
        self._keys = 0

    def decide(self, life: Life) -> Found | None:
        """What becomes of a request at its admission; None for a node that is not there."""
        fleet, asked = self._fleet, life.asked
        node = fleet.place(life.node, life.session)
        if node != life.node:
            self._moved[life.session] = life.node, node
            if len(self._moved) > MOVED_MAX:
                del self._moved[next(iter(self._moved))]
        engine = fleet.engines.get(node)
        if engine is None:
            return None
        prompt = life.prompt_tokens(engine.block_size)
        chain = life.prompt
        # Its last token is computed in any case, so its own cache never gives all of it.
        most = max(0, prompt - 1) // engine.unit_tokens
        local = min(engine.local(chain), most)
        pull = None
        if asked.miss not in BARRED and not life.failed:
            pull = self._pull(life, engine, chain, local, prompt)
        found = self._found(engine, prompt, local, pull)
        if pull is not None and pull.source != node:
            self._begin(engine, pull, found)
            fleet.read(pull.source, chain[: pull.end])
        fleet.admitted(life, node, found.source if found.source != node else "")
        return found

    # --- where from -------------------------------------------------------------------------

    def _pull(
        self, life: Life, engine: Engine, chain: Sequence[int], local: int, prompt: int
    ) -> _Pull | None:
        asked = life.asked
        best = None
        if asked.basis in (HANDOVER, HINT) and asked.source:
            best = self._hinted(life, engine, chain, local)
        if best is not None and self._rest_too_dear(life, engine, local, best):
            best = None  # Its node computes what it lacks of it, and asks for no plan.
        elif best is None and asked.basis != HANDOVER and local < len(chain):
            best = self._as_recorded(life, chain, local)
            if best is None and (asked.miss != TOO_DEAR or self._fleet.policy.changes):
                best = self._planned(engine, chain, local, life.chain)
        end, from_host = engine.reach(chain, local)
        if from_host and end > local and (best is None or end >= best.end):
            best = _Pull(engine.name, end)
        if best is None:
            return None
        covered = min(best.end * engine.unit_tokens, prompt - 1)
        enough = covered - local * engine.unit_tokens >= self._least(engine)
        return best if enough else None

    def _least(self, engine: Engine) -> int:
        return max(engine.block_size, engine.keeping.min_pull_tokens)

    def _hinted(self, life: Life, engine: Engine, chain: Sequence[int], local: int) -> _Pull | None:
        """Who the hint names, unless its prefix is thought too dear to move."""
        source = life.asked.source
        moved = self._moved.get(life.session)
        if moved is not None and moved[0] == source:
            source = moved[1]
        holder = self._fleet.engines.get(source)
        if holder is None or source == engine.name:
            return None
        end = len(chain) if life.asked.basis == HANDOVER else holder.reach(chain)[0]
        if end <= local:
            return None
        pull = _Pull(source, end)
        # That the hint was followed is recorded: it is weighed again only where that may differ.
        again = life.asked.basis == HINT and self._fleet.policy.weighs_otherwise
        return None if again and not self._pays(engine, local, pull) else pull

    def _rest_too_dear(self, life: Life, engine: Engine, local: int, pull: _Pull) -> bool:
        """Whether the node, which has ``local`` units, computes what is left of the hint's prefix.

        What older versions followed stays followed under the policy that was in force. A trial is
        not told from what it tried: most of that was computed.
        """
        asked, fleet = life.asked, self._fleet
        if asked.basis != HINT or not local or not fleet.weighs:
            return False
        if not asked.weighed_from and not fleet.policy.weighs_otherwise:
            return False
        unit, pair = engine.unit_tokens, pair_key(pull.source, engine.name)
        return not pair_rest(fleet.view, pair, local * unit, pull.end * unit).pays

    def _pays(self, engine: Engine, local: int, pull: _Pull) -> bool:
        """Whether what a hint offers is worth moving under this policy."""
        view, policy = self._fleet.view, self._fleet.policy
        tokens = pull.end * engine.unit_tokens
        if self._fleet.weighs and tokens < pair_pays_from(view, pair_key(pull.source, engine.name)):
            return False
        if not policy.threshold_ms:
            return True
        spared = self._computing(engine, local * engine.unit_tokens, tokens)
        return spared - self._found(engine, tokens, local, pull).move_ms >= policy.threshold_ms

    def _as_recorded(self, life: Life, chain: Sequence[int], local: int) -> _Pull | None:
        """The recorded plan, where its source holds what it gave and costs are what they were."""
        asked, policy = life.asked, self._fleet.policy
        holder = self._fleet.engines.get(asked.source)
        if asked.basis != PLAN or not asked.transfer or policy.weighs_otherwise or holder is None:
            return None
        end = holder.reach(chain)[0]
        if end <= local or end * holder.grain < asked.granted // holder.grain * holder.grain:
            return None
        return _Pull(asked.source, end, asked.queue_ms)

    def _planned(
        self, engine: Engine, chain: Sequence[int], local: int, hashes: bytes
    ) -> _Pull | None:
        """The shipped plan over what the simulated nodes hold."""
        fleet, view = self._fleet, self._fleet.view
        held = []
        for name, one in fleet.engines.items():
            if name == engine.name or not one.has(chain[local]):
                continue
            reach, from_host = one.reach(chain)
            if reach > local:
                held.append((reach, name, "host" if from_host else "cache"))
        if not held:
            return None
        held.sort(key=lambda pair: (-pair[0], pair[1]))
        holders = [
            Holder(node=view.nodes[name], blocks=reach * engine.grain, tier=tier)
            for reach, name, tier in held[:HOLDERS_MAX]
        ]
        need = Need(target=view.nodes[engine.name], chain=hashes, stride=engine.stride)
        now_ms = fleet.clock.now_s * 1_000
        planned = plan_prefix(view, self._moves, need, holders, now_ms=now_ms, weigh=fleet.weighs)
        chosen = next((one for one in planned.chosen if self._gains(one)), None)
        if chosen is None:
            return None
        blocks = chosen.limit or chosen.source.blocks
        return _Pull(chosen.source.node, blocks // engine.grain, chosen.source.queue_ms)

    def _gains(self, one: Ranked) -> bool:
        # Without a threshold the plan itself has weighed, or was told not to.
        gain, threshold_ms = one.gain_ms, self._fleet.policy.threshold_ms
        return not threshold_ms or gain is None or gain >= threshold_ms

    # --- what it takes ----------------------------------------------------------------------

    def _found(self, engine: Engine, prompt: int, local: int, pull: _Pull | None) -> Found:
        size, unit = engine.block_bytes, engine.unit_tokens
        here = min(local * unit, max(0, prompt - 1))
        if pull is None:
            took = self._computing(engine, here, prompt)
            return Found(node=engine.name, local=here, compute_ms=took, prompt=prompt)
        count = max(0, pull.end - local)
        pulled = min(count * unit, prompt - here)
        own = pull.source == engine.name
        node = self._fleet.view.nodes[pull.source]
        backends = HOST_COPY if own else self._common(pull.source, engine.name)
        link = link_cost(self._fleet.view.rates, node.name, engine.name, backends)
        return Found(
            node=engine.name,
            local=here,
            pulled=pulled,
            from_host=pulled if own else 0,
            source=pull.source,
            bytes=0 if own else count * size,
            move_ms=service_ms(link, count * size) + pull.queue_ms,
            compute_ms=self._computing(engine, here + pulled, prompt),
            prompt=prompt,
        )

    def _common(self, source: str, target: str) -> tuple[str, ...]:
        nodes = self._fleet.view.nodes
        theirs = nodes[source].backends
        return tuple(name for name in nodes[target].backends if name in theirs)

    def _computing(self, engine: Engine, before: int, prompt: int) -> float:
        cost = self._fleet.view.prefill.get(engine.name)
        tokens = max(0, prompt - before)
        took = cost.predict(tokens, before) if cost is not None and tokens else None
        return took or 0.0

    def _begin(self, engine: Engine, pull: _Pull, found: Found) -> None:
        """The move takes its part of both nodes until it is thought to be over."""
        now_s = self._fleet.clock.now_s
        self._keys += 1
        key = str(self._keys)
        flow = Flow(
            source=pull.source,
            target=engine.name,
            begun_ms=now_s * 1_000,
            service_ms=max(0.0, found.move_ms - pull.queue_ms),
            blocks=pull.end * engine.grain,
            size_bytes=found.bytes,
        )
        self._moves.begin(key, flow)
        self._fleet.clock.at(now_s + found.move_ms / 1_000, lambda: self._moves.end(key))
