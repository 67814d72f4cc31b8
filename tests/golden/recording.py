"""Makes the recording: a chaos run on real engines, exported, and what the engines said of it.

Three engines, p0, d0 and d1; p0 serves its blocks through a relay that can hold and damage them.
The recorder drives the engines itself and writes down turns as a router, r0, would.

1. A conversation, two turns: p0 computes, d0 pulls and answers, p0 pulls the answer back.
2. d1 is sent prompts that d0 answered and goes by plans: the first ones measure, others predict.
3. A block is damaged on its way from p0 to d0.
4. A client leaves while d1 loads for it.
5. The coordinator is stopped and goes on: a plan is late, a hint needs none.
6. d0 is killed. The third turn's hint names it still: p0 computes, and d1 answers.
7. d0 is given up: what it alone held is gone, what d1 holds too comes from there; the fourth turn.
8. d1 stops.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import engine_starter, joined, prompt, stop_all
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import (
    NodeClosed,
    NodeLeft,
    PinEnded,
    RequestEnded,
    Retained,
    Transferred,
    TurnEnded,
)
from kvferry.node.agent.settings import NodeSettings
from kvferry_backends.tcp.wire import HEAD_BYTES
from kvferry_connectors.demo.model import TINY, ensure_model
from kvferry_connectors.router.ledger import RouterLedger

FOLDER = Path(__file__).parent
RECORDING = FOLDER / "chaos.kvf"
HAPPENED = FOLDER / "happened.json"
"""What each engine said of its requests, by the names used here: the outside view."""

SILENT_AFTER_S = 4.0
PLAN_DEADLINE_MS = 1_500
BLOCK_BYTES = 32 * 1024
SESSION = {"session": "chat"}


class Run:
    """One recording under way."""

    def __init__(
        self, plane: Plane, relay: Relay, router: RouterLedger, engines: dict[str, EngineProcess]
    ) -> None:
        self.plane, self.relay, self.router, self.engines = plane, relay, router, engines
        self.happened: list[dict[str, Any]] = []
        self._turns = 0
        self._text: list[int] = []
        self._hint: dict[str, Any] | None = None

    def ask(self, node: str, name: str, text: list[int], tokens: int, **kvferry: Any) -> Answer:
        """Have a node answer; returns once the ledger has the end of it and what it left."""
        answer = self.engines[node].run(name, text, tokens=tokens, kvferry=kvferry or None)
        self._note(node, name, text, answer)
        return answer

    def _note(self, node: str, name: str, text: list[int], answer: Answer) -> None:
        request = answer.report["request"]

        def told(seen: list[Any]) -> bool:
            moved = {one.transfer for one in of(seen, Transferred, request=request)}
            ended = {one.transfer for one in of(seen, PinEnded)}
            offers = of(seen, Retained, request=request)
            return bool(of(seen, RequestEnded, request=request) and offers and moved <= ended)

        self.plane.wait_for(told, f"the end of {name}")
        kept = ("request", "pulled", "local", "computed", "from", "miss")
        report = {key: answer.report[key] for key in kept if key in answer.report}
        self.happened.append(
            {"name": name, "node": node, "prompt": len(text), "answer": len(answer.tokens)} | report
        )

    # --- the story --------------------------------------------------------------------------

    def turn(self, decode: str, more: int) -> None:
        """The conversation's next turn: p0 with the last answer's hint, then ``decode``."""
        self._turns += 1
        name = f"turn-{self._turns}"
        self._text = self._text + prompt(self._turns, more)
        began = time.monotonic()
        hint = {"hint": self._hint} if self._hint is not None else {}
        first = self.ask("p0", f"{name}-p", self._text, 1, id=f"{name}-p", **SESSION, **hint)
        ttft_ms = (time.monotonic() - began) * 1_000
        answer = self.ask(
            decode, f"{name}-d", self._text, 40, id=f"{name}-d", **SESSION, hint=first.hint
        )
        self.router.turn_ended(
            TurnEnded(
                request=name,
                session=SESSION["session"],
                prefill_node="p0",
                decode_node=decode,
                prefill_request=first.report["request"],
                decode_request=answer.report["request"],
                prompt_tokens=len(self._text),
                output_tokens=len(answer.tokens),
                ttft_ms=ttft_ms,
                total_ms=(time.monotonic() - began) * 1_000,
            )
        )
        self.plane.wait_for(lambda seen: of(seen, TurnEnded, request=name), f"the end of {name}")
        self._text = self._text + answer.tokens
        self._hint = answer.hint

    def plans(self) -> None:
        for number in range(5):
            text = prompt(10 + number, 480 + 160 * number)
            self.ask("d0", f"plan-{number}-d0", text, 4)
            self.plane.wait_projected()
            self.ask("d1", f"plan-{number}-d1", text, 4)

    def damage(self) -> None:
        text = prompt(20, 600)
        first = self.ask("p0", "torn-p", text, 1)
        self.relay.damage(HEAD_BYTES + 5 * BLOCK_BYTES + 7, 1)
        self.ask("d0", "torn-d", text, 8, hint=first.hint)
        assert self.relay.damaged == 1
        self.relay.carry()

    def abort(self) -> None:
        text = prompt(30, 600)
        first = self.ask("p0", "left-p", text, 1)
        self.relay.stall_after(4 * BLOCK_BYTES)
        target = self.engines["d1"]
        target.add("left-d", text, tokens=8, kvferry={"hint": first.hint})
        self.relay.wait_held()
        target.abort("left-d")
        target.run("left-poke", prompt(31, 8), tokens=2)  # An idle engine aborts at its next step.
        self.relay.carry()
        seen = self.plane.wait_for(
            lambda seen: [e for e in of(seen, RequestEnded) if e.request.startswith("left-d")],
            "the end of left-d",
        )
        (ended,) = [e for e in of(seen, RequestEnded) if e.request.startswith("left-d")]
        self.happened.append(
            {"name": "left-d", "node": "d1", "request": ended.request, "aborted": True}
        )

    def stopped_coordinator(self) -> None:
        text, other = prompt(40, 500), prompt(41, 500)
        self.ask("p0", "late-p", text, 4)
        first = self.ask("p0", "hinted-p", other, 4)
        self.plane.wait_projected()
        coordinator = self.plane.coordinator
        assert coordinator is not None
        coordinator.send_signal(signal.SIGSTOP)
        try:
            self.ask("d1", "late-d", text, 4)
            self.ask("d1", "hinted-d", other, 4, hint=first.hint)
        finally:
            coordinator.send_signal(signal.SIGCONT)
        self.plane.wait_projected()

    def killed(self) -> None:
        lost = prompt(50, 400)
        self.ask("d0", "lost-d0", lost, 4)
        life = self.engines["d0"].ask("incarnation")
        self.engines["d0"].kill()
        self.turn("d1", 50)
        self.plane.wait_for(
            lambda seen: of(seen, NodeLeft, node="d0", incarnation=life), "d0 is given up", 60.0
        )
        self.plane.wait_projected()
        self.ask("p0", "lost-p0", lost, 4)
        self.ask("p0", "kept-p0", prompt(13, 960), 4)  # d1 has it since the third plan.
        self.turn("d1", 50)

    def end(self) -> None:
        self.engines["d1"].stop()
        self.plane.wait_for(
            lambda seen: [one for one in seen if isinstance(one.event, NodeClosed)], "d1's end"
        )


def record() -> None:
    """Run the story and write :data:`RECORDING` and :data:`HAPPENED`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = ensure_model(folder / "tiny", TINY)
        plane, relay = Plane(folder, silent_after_s=SILENT_AFTER_S), Relay()
        made: list[EngineProcess] = []
        plane.start_coordinator()
        router = RouterLedger.open(NodeSettings(nats_url=plane.url, node="r0"))
        try:
            start = engine_starter(model, plane.url, made)
            limits = {"plan_deadline_ms": PLAN_DEADLINE_MS, "lease_ms": 5_000}
            engines = {
                "p0": start("p0", connector={**limits, **relay.connector_options()}),
                "d0": start("d0", connector=limits),
                "d1": start("d1", connector=limits),
            }
            joined(*engines.values())
            run = Run(plane, relay, router, engines)
            run.turn("d0", 640)
            run.turn("d0", 50)
            run.plans()
            run.damage()
            run.abort()
            run.stopped_coordinator()
            run.killed()
            run.end()
            done = plane.cli("export", str(RECORDING), "--force")
            assert done.returncode == 0, done.stderr
            HAPPENED.write_text(json.dumps(run.happened, indent=1) + "\n")
        finally:
            router.close()
            relay.close()
            stop_all(made)
            plane.stop()
