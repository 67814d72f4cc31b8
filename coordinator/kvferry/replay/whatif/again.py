"""Recorded decisions, decided again by the code that decides on real nodes and coordinators.

A plan is asked of the shipped planner over a fold that stands where the coordinator's stood. What a
node decides by what it was told is decided by the same functions over the same fold.
"""

from __future__ import annotations

from kvferry.core.advising import pair_pays_from, pair_rest
from kvferry.core.cost import pair_key
from kvferry.core.messages import PlanAnswer, PlanRequest
from kvferry.core.planning import TOO_DEAR
from kvferry.core.state import NodeState, SpaceState
from kvferry.ids import SHORT_BYTES, sample_stride
from kvferry.index.planner import Planner
from kvferry.replay.whatif.fold import Fold
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.tally import Differing, Tally

PLAN, TOLD, HINT, HOST = "plan", "told", "hint", "host"
NO_CHAIN = "what the prompt was is not in the ledger: the request left no offer"
NO_ANSWER = "what the plan said is not in the ledger: the request did not use it"
NOT_THERE = "its node is not known at that position"
ANSWERED = frozenset({"nothing_held", TOO_DEAR, "busy", "paused", "not_joined", "space_mismatch"})
"""Misses that are a plan's own answer."""


class Redecider:
    """Decides again, and keeps the tally.

    Args:
        fold: stands where the next decisions were made.
        weighed: moves were weighed against computing where the ledger does not say.
    """

    def __init__(self, fold: Fold, *, weighed: bool = True) -> None:
        self.tally = Tally()
        self._fold = fold
        self._planner = Planner("whatif", fold, weigh=weighed, clock=fold.now_s)
        self._weighed = weighed

    def decide(self, life: Life) -> None:
        """Decide about one request again, at the fold's present place."""
        asked = life.asked
        kind = kind_of(life)
        if not kind:
            self.tally.not_decided[asked.basis or asked.miss or "unknown"] += 1
            return
        space = self._fold.state.spaces.get(life.key[0])
        node = space.nodes.get(life.node) if space is not None else None
        if space is None or node is None or node.block_size <= 0:
            self._differs(life, kind, NOT_THERE, "")
            return
        if kind == PLAN:
            self._plan(life, space, node)
        elif kind == TOLD:
            self._told(life, space, node)
        elif kind == HINT:
            self._hint(life, space, node)
        else:
            self._host(life, space, node)

    # --- one kind each ----------------------------------------------------------------------

    def _plan(self, life: Life, space: SpaceState, node: NodeState) -> None:
        asked = life.asked
        chain = prompt_chain(life, space, node)
        if chain is None:
            self._differs(life, PLAN, NO_CHAIN, "")
            return
        stride = sample_stride(node.block_size)
        answer = self._planner.answer(
            PlanRequest(
                space=life.key[0],
                node=life.node,
                hashes=chain,
                stride=stride,
                block_size=node.block_size,
                prompt_tokens=life.prompt_tokens(node.block_size),
                request=asked.request,
                waited_ms=asked.waited_ms,
            )
        )
        recorded = _recorded(life)
        if not recorded:
            self.tally.not_decided[f"plan not used: {asked.miss or 'unknown'}"] += 1
            return
        self._compare(life, PLAN, recorded, _said(answer))

    def _told(self, life: Life, space: SpaceState, node: NodeState) -> None:
        asked, stride = life.asked, sample_stride(node.block_size)
        first = asked.local_tokens // (stride * node.block_size)
        if first >= asked.wanted // stride:
            self._compare(life, TOLD, "nobody", "nobody")
            return
        chain = prompt_chain(life, space, node)
        if chain is None:
            self._differs(life, TOLD, NO_CHAIN, "")
            return
        held = self._fold.index.space(life.key[0]).holders(chain[: (first + 1) * SHORT_BYTES])
        somebody = any(one.samples > first for one in held)
        self._compare(life, TOLD, "nobody", "somebody" if somebody else "nobody")

    def _hint(self, life: Life, space: SpaceState, node: NodeState) -> None:
        asked, pair = life.asked, pair_key(life.asked.source, life.node)
        weighs = space.weighs(self._weighed)
        if asked.weighed_from:
            end = min(asked.granted, asked.wanted) * node.block_size
            dear = weighs and not pair_rest(space, pair, asked.weighed_from, end).pays
        else:  # So older versions weighed every hint.
            dear = weighs and asked.granted * node.block_size < pair_pays_from(space, pair)
        recorded = asked.source if asked.transfer else f"{TOO_DEAR} {asked.source}"
        again = f"{TOO_DEAR} {asked.source}" if dear else asked.source
        self._compare(life, HINT, recorded, again)

    def _host(self, life: Life, space: SpaceState, node: NodeState) -> None:
        asked, stride = life.asked, sample_stride(node.block_size)
        chain = prompt_chain(life, space, node)
        if chain is None:
            self._differs(life, HOST, NO_CHAIN, "")
            return
        held = self._fold.index.space(life.key[0]).holders(
            chain, usable=lambda name: name == life.node
        )
        reach = max((one.samples * stride for one in held), default=0)
        enough = reach >= asked.granted // stride * stride
        self._compare(life, HOST, "host", "host" if enough else f"only {reach} blocks here")

    # --- the tally --------------------------------------------------------------------------

    def _compare(self, life: Life, kind: str, recorded: str, again: str) -> None:
        if recorded == again:
            self.tally.reproduced(kind)
        else:
            self._differs(life, kind, f"{_word(recorded)}, again {_word(again)}", again)

    def _differs(self, life: Life, kind: str, why: str, again: str) -> None:
        self.tally.differs(
            kind,
            why,
            Differing(
                node=life.node,
                request=life.asked.request,
                recorded=_recorded(life) or life.asked.source or life.asked.miss,
                again=again or why,
            ),
        )


def kind_of(life: Life) -> str:
    """What decided about a request; empty where the policy did not."""
    asked = life.asked
    if asked.basis == TOLD:
        return TOLD
    if asked.basis == HINT and asked.position and not asked.tried:
        # Without advice a hint is followed, whatever it costs.
        rest = asked.weighed_from and asked.miss == TOO_DEAR
        return HINT if asked.transfer or rest else ""
    if asked.basis == HOST and asked.transfer:
        return HOST
    if asked.basis == PLAN or (asked.position and not asked.basis and asked.miss in ANSWERED):
        return PLAN
    return ""


def prompt_chain(life: Life, space: SpaceState, node: NodeState) -> bytes | None:
    """The sampled hashes of the prompt; None where the ledger does not tell them all.

    A request that repeats another one to its last token leaves no offer of its own: then it is
    known by the last of them, from what stands on its node.
    """
    end = life.asked.wanted // sample_stride(node.block_size) * SHORT_BYTES
    if len(life.chain) >= end:
        return life.chain[:end]
    tail = life.asked.tail
    if not tail:
        return None
    for offer in space.offers.values():
        if offer.hashes[end - SHORT_BYTES : end] == tail and not offer.base:
            return offer.hashes[:end]
    return None


def _recorded(life: Life) -> str:
    """What the plan had said: its first choice, or its miss; empty where that is not known."""
    asked = life.asked
    if asked.options:
        return asked.options[0]
    if asked.miss == TOO_DEAR and asked.source:
        return f"{TOO_DEAR} {asked.source}"
    return asked.miss if asked.miss in ANSWERED else ""


def _said(answer: PlanAnswer) -> str:
    chosen = answer.candidates or answer.observed
    if chosen:
        return chosen[0].node
    return f"{answer.miss} {answer.dear[0].node}" if answer.dear else answer.miss


def _word(said: str) -> str:
    """A decision without the names in it, to count by."""
    first = said.partition(" ")[0]
    known = first in ANSWERED or first in ("nobody", "somebody", "host", "only", "on", "observe")
    return first if known else "a source"
