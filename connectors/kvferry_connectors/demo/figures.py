"""What the demo found, as it goes into ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class TurnFigures:
    """One turn of a conversation. Counts in tokens, times in milliseconds.

    ``local``, ``computed`` and ``pulled_d_to_p`` are P's and add up to the prompt;
    ``pulled_p_to_d`` is D's. The turn with reuse off has the same prompt.
    """

    conversation: str
    turn: int
    prompt_tokens: int
    local_tokens: int
    computed_tokens: int
    pulled_d_to_p: int
    pulled_p_to_d: int
    ttft_ms: float
    ttft_off_ms: float
    computed_off_tokens: int
    source: str
    """The node that P pulled from."""
    found_by: str
    """``plan`` or ``hint``; empty without a pull."""
    streamed: bool
    request: str
    """The router's id, for ``kvferry explain``."""

    def problems(self) -> list[str]:
        """What is wrong, in words; empty when all is well."""
        where = f"conversation {self.conversation}, turn {self.turn}"
        found = []
        if self.turn > 1 and not self.pulled_d_to_p:
            found.append(f"{where}: P pulled nothing")
        if self.local_tokens:
            found.append(f"{where}: P's own cache still held {self.local_tokens} tokens")
        if self.computed_off_tokens != self.prompt_tokens:
            found.append(
                f"{where} with reuse off: P computed {self.computed_off_tokens} tokens of "
                f"{self.prompt_tokens}"
            )
        return found


@dataclass(frozen=True)
class CaseFigures:
    """A turn that is no plain continuation."""

    case: str
    prompt_tokens: int
    local_tokens: int
    computed_tokens: int
    pulled_d_to_p: int
    pulled_p_to_d: int
    miss: str
    line: str
    """The ``x-kvferry`` header of the reply."""
    found_by: str
    ttft_ms: float
    request: str
    expected: str
    """What had to be seen, in words."""
    ok: bool


@dataclass(frozen=True)
class Reconciled:
    """One process life of an engine: prompt tokens as the ledger and as vLLM count them."""

    node: str
    incarnation: str
    ledger: dict[str, int]
    metrics: dict[str, int]

    @property
    def equal(self) -> bool:
        """Whether both counts are the same."""
        return self.ledger == self.metrics


@dataclass(frozen=True)
class LedgerFigures:
    """What the ledger of the run holds."""

    events: dict[str, int]
    missing_events: tuple[str, ...]
    """Of those that a run must have."""
    quarantined: int
    gaps: int
    unsettled_transfers: int
    unbalanced_requests: int
    engines: tuple[Reconciled, ...]
    live_digest: str
    replay_digest: str
    position: int

    def problems(self) -> list[str]:
        """What is wrong, in words; empty when all is well."""
        found = [f"the ledger has no {name} event" for name in self.missing_events]
        if self.quarantined:
            found.append(f"{self.quarantined} messages cannot be decoded")
        if self.gaps:
            found.append(f"{self.gaps} events were lost before they reached the ledger")
        if self.unsettled_transfers:
            found.append(f"{self.unsettled_transfers} transfers have no single outcome")
        if self.unbalanced_requests:
            found.append(f"{self.unbalanced_requests} requests do not add up to their prompt")
        found += [
            f"{one.node}: the ledger counts {one.ledger}, vLLM counts {one.metrics}"
            for one in self.engines
            if not one.equal
        ]
        if self.live_digest != self.replay_digest:
            found.append("a replay in another process does not give the live state")
        return found


@dataclass
class Figures:
    """All of it."""

    turns: list[TurnFigures] = field(default_factory=list)
    cases: list[CaseFigures] = field(default_factory=list)
    compared: int = 0
    """Answers that were compared with the reference engine's."""
    different: list[str] = field(default_factory=list)
    """Those that were not equal, by name."""
    ledger: LedgerFigures | None = None
    seconds: float = 0.0
    explained: str = ""
    """What ``kvferry explain`` says of one turn."""

    @property
    def outputs_equal(self) -> bool:
        """Whether every answer was compared and equal."""
        return self.compared > 0 and not self.different

    def problems(self) -> list[str]:
        """Why the demo did not show what it must; empty when it did."""
        found = [f"{name}: not the reference engine's answer" for name in self.different]
        if not self.compared:
            found.append("no answer was compared with the reference engine's")
        for turn in self.turns:
            found += turn.problems()
        found += [
            f"{case.case}: expected {case.expected}, saw {case.line}"
            for case in self.cases
            if not case.ok
        ]
        if self.ledger is None:
            found.append("the ledger was not checked")
        else:
            found += self.ledger.problems()
        return found

    def document(self) -> dict[str, Any]:
        """For ``--json``; keys are stable."""
        ledger: dict[str, Any] | None = None
        if self.ledger is not None:
            ledger = dataclasses.asdict(self.ledger)
            for one, engine in zip(ledger["engines"], self.ledger.engines, strict=True):
                one["equal"] = engine.equal
            ledger["replay_equal"] = self.ledger.live_digest == self.ledger.replay_digest
        return {
            "outputs_equal": self.outputs_equal,
            "outputs_compared": self.compared,
            "problems": self.problems(),
            "seconds": round(self.seconds, 1),
            "turns": rows(self.turns),
            "cases": rows(self.cases),
            "ledger": ledger,
        }


def rows(items: Sequence[DataclassInstance]) -> list[dict[str, Any]]:
    """Figures as rows of a document, times with one decimal."""
    found = []
    for item in items:
        row = dataclasses.asdict(item)
        found.append({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()})
    return found
