"""Conversations: each turn is prefilled on one node and decoded on another, with the hints that
their replies carried, some of them forged on the way."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.sim.kernel.kernel import Process
from tests.sim.kernel.threads import Event
from tests.sim.world.request import BLOCK_TOKENS, Request

if TYPE_CHECKING:
    from tests.sim.world.world import World

EVIL = ("evil", 666)
"""An address that no node has; whoever dials it believed a forged hint."""
ANSWER_S_MAX = 30.0
"""No request may take longer, whatever happens meanwhile."""
TENANTS = ("", "a")


class Client:
    """One conversation after the other, on a thread of its own."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number
        self._rng = random.Random(f"{world.kernel.seed}/client/{number}")
        self.asked = 0
        self._hints: dict[str, Any] = {}
        """The newest hint of each node, from whatever reply."""
        self.done = False
        self.process = Process(world.kernel, f"client{number}")
        world.kernel.spawn(self.process, self.process.name, self._run)

    def _run(self) -> None:
        world = self._world
        while world.kernel.now_s < world.knobs.busy_s:
            self._converse()
        self.done = True

    def _converse(self) -> None:
        rng, knobs = self._rng, self._world.knobs
        salt = rng.choice(TENANTS)
        topic = rng.randrange(3)  # Conversations about one topic begin with the same blocks.
        history = [topic * 1000 + i for i in range(2 * BLOCK_TOKENS)]
        hint: Any = None
        for turn in range(knobs.turns):
            more = rng.choice((1, 30, BLOCK_TOKENS, BLOCK_TOKENS * 2 + 7))
            history += [rng.randrange(1 << 20) for _ in range(more)]
            if len(history) > knobs.prompt_blocks_max * BLOCK_TOKENS:
                return
            session = f"{self._number}.{self.asked}"
            answer, hint = self._turn(history, hint, salt, session)
            if answer is None:
                hint = None
            else:
                history = answer
            self._world.kernel.sleep(rng.random() * knobs.think_s)
            if self._world.kernel.now_s > self._world.knobs.busy_s:
                return
            if turn and rng.random() < 0.1:
                hint = None  # A careless proxy lost it.

    def _turn(
        self, prompt: list[int], hint: Any, salt: str, session: str
    ) -> tuple[list[int] | None, Any]:
        """All tokens after the turn, None if it failed; and the decode's hint."""
        rng, names = self._rng, self._world.names
        first, second = rng.sample(names, 2) if rng.random() < 0.9 else [rng.choice(names)] * 2
        overlap = rng.random() < self._world.knobs.overlap_share and first != second
        own = {"session": session, "id": session}
        if overlap and first in self._hints:
            name = f"pub{self._number}.{self.asked}"
            early = {**own, "hint": hint, "handover": True, "publish": name}
            late = {**own, "hint": self._hints[first], "follow": name}
            prefill = self._send(first, prompt, 1, salt, early)
            decode = self._send(second, prompt, rng.choice((1, 5, 70)), salt, late)
            self._wait(first, prefill)
            return self._wait(second, decode)
        prefill = self._send(first, prompt, 1, salt, {**own, "hint": hint, "handover": True})
        answer, given = self._wait(first, prefill)
        if answer is None:
            given = self._hints.get(first)  # Of another prompt: it still says where to ask.
        decode = self._send(second, prompt, rng.choice((1, 5, 70)), salt, {**own, "hint": given})
        return self._wait(second, decode)

    def _send(
        self, node: str, prompt: list[int], tokens: int, salt: str, params: dict[str, Any]
    ) -> _Call:
        self.asked += 1
        name = f"r{self._number}.{self.asked}"
        params = {**params, "hint": self._tampered(params["hint"])}
        request = Request(name, prompt, max_tokens=tokens, salt=salt, params=params)
        call = _Call(self._world, self.process.name, node, request)
        call.send()
        if self._rng.random() < self._world.knobs.abort_share:
            when_s = self._rng.random() * 0.3
            self._world.kernel.after(when_s, lambda: self._world.nodes[node].abort(name))
        return call

    def _wait(self, node: str, call: _Call) -> tuple[list[int] | None, Any]:
        if not call.answered.wait(ANSWER_S_MAX):
            self._world.violations.add("endings", f"{call.request.request_id} is never answered")
        if call.request.status.name == "FINISHED_ABORTED" or not call.ok:
            return None, None
        if call.hint is not None:
            self._hints[node] = call.hint
        return list(call.request.tokens), call.hint

    def _tampered(self, hint: Any) -> Any:
        if not isinstance(hint, dict) or self._rng.random() >= self._world.knobs.forge_share:
            return hint
        self._world.kernel.note("forge", hint["node"])
        if self._rng.random() < 0.7:
            return {**hint, "address": f"{EVIL[0]}:{EVIL[1]}"}
        return {**hint, "expires_ms": hint["expires_ms"] + 10_000_000}


class _Call:
    """One request over the network and back."""

    def __init__(self, world: World, client: str, node: str, request: Request) -> None:
        self._world, self._client, self._node = world, client, node
        self.request = request
        self.answered = Event()
        self.ok = False
        self.hint: Any = None

    def send(self) -> None:
        kernel, network = self._world.kernel, self._world.network
        kernel.after(network.delay_s(), self._arrive)

    def _arrive(self) -> None:
        self._world.nodes[self._node].submit(self.request, self._ended)

    def _ended(self, request: Request | None, params: dict[str, Any]) -> None:
        self.ok = request is not None
        self.hint = params.get("hint")
        self._world.kernel.note("answer", self.request.request_id, self.ok, params.get("report"))
        self._world.kernel.after(self._world.network.delay_s(), self.answered.set)
