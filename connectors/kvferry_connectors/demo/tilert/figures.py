"""What the demo of TileRT found, as it goes into ``--json``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from kvferry.core.slots import CONFIRMED, GRANT, REPLIED
from kvferry_connectors.demo.figures import LedgerFigures, rows
from kvferry_connectors.demo.tilert.settings import NODES, TOKEN_BYTES

STUB = (
    "TileRT's own decode server ran, with a stub for an engine: the tokens after the first and the "
    "KV rows that it gives for them are not a model's. So answers are not compared, and nothing "
    "is measured of TileRT. What is real: prefill and its KV, leases, sends, what nodes keep, and "
    "what prefill pulls of it"
)
COMPARED = (
    "the first token, which prefill makes, of each turn whose whole prompt it computed, with the "
    "same prompt on d0 by itself"
)


@dataclass(frozen=True)
class PoolTurn:
    """One turn on a TileRT node. Counts in tokens, times in milliseconds, all from the ledger but
    the answer's own."""

    conversation: str
    turn: int
    streamed: bool
    prompt_tokens: int
    local_tokens: int
    computed_tokens: int
    pulled_tokens: int
    source: str
    """The node that P pulled from."""
    found_by: str
    node: str
    slot_generation: int
    """Fence of the lease."""
    slot_waited_ms: float
    slot: tuple[str, ...]
    """What became of the lease."""
    admission: int
    """The node's own number of what it admitted."""
    sent_bytes: int
    send_ms: float
    """From the order to the last byte, prefill's own computing included."""
    send_failed: str
    answer_tokens: int
    returned_blocks: int
    not_returned: str
    """Why the node kept nothing."""
    history_tokens: int
    """Of the prompt that ``source`` had kept: full blocks of the last prompt and answer there."""
    ttft_ms: float
    total_ms: float
    request: str
    """The router's id, for ``kvferry explain``."""

    def problems(self) -> list[str]:
        """What is wrong, in words; empty when all is well."""
        where = f"conversation {self.conversation}, turn {self.turn}"
        found = []
        if self.slot != (GRANT, CONFIRMED, REPLIED):
            found.append(f"{where}: its lease went {', '.join(self.slot)}")
        if self.send_failed or self.sent_bytes != self.prompt_tokens * TOKEN_BYTES:
            why = self.send_failed or f"{self.sent_bytes} bytes"
            found.append(f"{where}: the KV of {self.prompt_tokens} tokens was not sent: {why}")
        if not self.returned_blocks:
            found.append(f"{where}: {self.node} kept nothing ({self.not_returned})")
        if self.turn > 1 and (
            self.pulled_tokens != self.history_tokens or self.source not in NODES
        ):
            found.append(
                f"{where}: P pulled {self.pulled_tokens} tokens from {self.source or 'nobody'}, "
                f"and a TileRT node had kept {self.history_tokens}"
            )
        return found


@dataclass(frozen=True)
class PoolCase:
    """Something that does not go as usual."""

    case: str
    seen: str
    expected: str
    ok: bool
    request: str = ""


@dataclass
class PoolFigures:
    """All of it."""

    turns: list[PoolTurn] = field(default_factory=list)
    cases: list[PoolCase] = field(default_factory=list)
    compared: int = 0
    """First tokens that were compared."""
    different: list[str] = field(default_factory=list)
    ledger: LedgerFigures | None = None
    violations: list[str] = field(default_factory=list)
    """What ``kvferry audit`` found."""
    seconds: float = 0.0
    explained: str = ""

    @property
    def outputs_equal(self) -> bool:
        """Whether everything that could be compared was equal; see :data:`COMPARED`."""
        return self.compared > 0 and not self.different

    def problems(self) -> list[str]:
        """Why the demo did not show what it must; empty when it did."""
        found = [f"{name}: the first token is not d0's" for name in self.different]
        if not self.compared:
            found.append("no first token was compared")
        for turn in self.turns:
            found += turn.problems()
        found += [
            f"{case.case}: expected {case.expected}, saw {case.seen}"
            for case in self.cases
            if not case.ok
        ]
        found += [f"kvferry audit: {one}" for one in self.violations]
        found += ["the ledger was not checked"] if self.ledger is None else self.ledger.problems()
        return found

    def document(self) -> dict[str, Any]:
        """For ``--json``; keys are stable."""
        ledger: dict[str, Any] | None = None
        if self.ledger is not None:
            ledger = dataclasses.asdict(self.ledger)
            ledger["replay_equal"] = self.ledger.live_digest == self.ledger.replay_digest
            ledger["violations"] = self.violations
        return {
            "stub": STUB,
            "outputs_equal": self.outputs_equal,
            "outputs_compared": self.compared,
            "outputs_compared_what": COMPARED,
            "problems": self.problems(),
            "seconds": round(self.seconds, 1),
            "turns": rows(self.turns),
            "cases": rows(self.cases),
            "ledger": ledger,
        }
