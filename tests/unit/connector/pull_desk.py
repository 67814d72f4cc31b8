"""The pulls of one node, with a looker that takes down what it is told to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.unit.connector.support import BLOCK, chain, tracked

from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.hints import Hint, HintBook
from kvferry.node.plans.advice import AdviceView
from kvferry_connectors.vllm.looking import HANDOVER
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.pulls import Pulls
from kvferry_connectors.vllm.remainders import Remainders
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

KEY, SPACE = b"k" * 32, "tiny-0123456789ab"
HASHES = chain("a", 8)


class Looker:
    """Takes down what it is told to do; the test plays the answers."""

    def __init__(self) -> None:
        self.plans = True
        self.spares = ""
        self.dear = False
        self.hints: list[Hint] = []
        self.planned: list[Pull] = []
        self.followed: list[Hint] = []
        self.left: list[str] = []
        self.aborted: list[str] = []
        self.renewed: list[str] = []
        self.freed = 0
        self.advice = AdviceView("p0")
        plans: Any = SimpleNamespace(available=lambda: self.plans, advice=self.advice)
        self.remainders = Remainders(plans, BLOCK)

    def has_plans(self) -> bool:
        return self.plans

    def too_dear(self, hint: Hint) -> bool:
        return self.dear

    def spared(self, one: Tracked, local_tokens: int) -> str:
        return self.spares

    def spare(self, one: Tracked) -> None:
        one.told = True

    def use_hint(self, one: Tracked, pull: Pull, hint: Hint) -> None:
        pull.basis = "hint"
        self.hints.append(hint)

    def follow(self, one: Tracked, pull: Pull, hint: Hint) -> None:
        pull.basis, pull.source = HANDOVER, hint.node
        self.followed.append(hint)

    def predict(self, one: Tracked, pull: Pull) -> None:
        return

    def leave(self, pull: Pull) -> None:
        self.left.append(pull.transfer)

    def ask_plan(self, one: Tracked, pull: Pull) -> None:
        self.planned.append(pull)

    def abort(self, pull: Pull, why: str) -> None:
        self.aborted.append(why)

    def renew(self, pull: Pull) -> None:
        self.renewed.append(pull.transfer)

    def unreserve(self, pull: Pull) -> None:
        if pull.slots:
            pull.slots.pop()
            self.freed += 1


class Desk:
    """The pulls of node ``p0``."""

    def __init__(self, **options: Any) -> None:
        self.looker = Looker()
        looker: Any = self.looker
        self.outbox = Outbox(facts_max=16)
        self.pulls = Pulls(
            Options(**options), self.outbox, looker, block_size=BLOCK, incarnation="life"
        )
        self.joined: Any = SimpleNamespace(node="p0", hints=HintBook(KEY, SPACE))

    def begin(self, one: Tracked, mode: str = "on") -> Tracked:
        self.pulls.begin(one, self.joined, mode)
        return one

    def found(self, one: Tracked, blocks: int) -> Pull:
        """The source granted so many blocks."""
        pull = one.pull
        assert pull is not None
        pull.source, pull.address, pull.granted = "d0", "127.0.0.1:9", blocks
        pull.state = PullState.READY
        return pull

    def facts(self) -> list[Any]:
        return [getattr(item, "event", item) for item in self.outbox.take_facts(99)]


def hint(**changes: Any) -> Any:
    """A hint as it stands in a request, signed by node d0."""
    key, space = changes.pop("key", KEY), changes.pop("space", SPACE)
    given: dict[str, Any] = {
        "node": "d0",
        "space": space,
        "address": "127.0.0.1:9",
        "incarnation": "i",
        "offer": "o",
        "blocks": 8,
        "tail": HASHES[7],
        "expires_ms": 1 << 61,
        **changes,
    }
    return HintBook(key, space).sign(Hint(**given))


def with_hint(raw: Any) -> Tracked:
    return tracked("r", HASHES, params={"hint": raw})
