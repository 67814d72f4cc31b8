"""Events as nodes would tell them, and the advice that comes of them."""

from __future__ import annotations

from tests.unit.cli.support import SPACE

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import AnyEvent, NodeJoined, Requested, RequestEnded, Transferred
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.study import LedgerStudy

BEGAN_S = 1_000_000.0
BLOCK, BLOCK_BYTES = 16, 1_600


class Told:
    """Events with the time at which they were stored, in seconds from the beginning."""

    def __init__(self, costs: Costs | None = None) -> None:
        self.study = LedgerStudy(costs or Costs())
        for node in ("p", "d"):
            self.at(
                0,
                node,
                NodeJoined(
                    incarnation="i", epoch=1, address="x", block_size=BLOCK,
                    block_bytes=BLOCK_BYTES,
                ),
            )  # fmt: skip

    def at(self, at_s: float, node: str, *events: AnyEvent, space: str = SPACE) -> None:
        batch = Batch(
            space=space, node=node, incarnation="i", epoch=1, lane="facts", seq=1,
            entries=tuple(Entry(event) for event in events),
        )  # fmt: skip
        self.study.add(batch, round((BEGAN_S + at_s) * 1_000))

    def report(self) -> Report:
        return self.study.report("a ledger", 1)


def computed(request: str, session: str = "", miss: str = "nothing_held") -> RequestEnded:
    """1,000 tokens in half a second; the whole request takes a second."""
    return RequestEnded(
        request=request, session=session, prompt_tokens=1_000, computed_tokens=1_000,
        output_tokens=20, ttft_ms=500.0, prefill_ms=500.0, total_ms=1_000.0, miss=miss,
    )  # fmt: skip


def pull(transfer: str) -> Requested:
    """Spares 400 ms."""
    return Requested(
        request=transfer, transfer=transfer, source="d", wanted=62, granted=50, basis="plan",
        predicted_ms=40.0, recompute_ms=400.0, session=f"s{transfer}",
    )  # fmt: skip


def pulled(transfer: str) -> tuple[AnyEvent, ...]:
    """800 of 1,000 tokens pulled in 50 ms, the rest computed in 100 ms."""
    return (
        pull(transfer),
        Transferred(
            transfer=transfer, request=transfer, source="d", start=0, count=50, tokens=800,
            bytes=50 * BLOCK_BYTES, backend="tcp", read_ms=40.0, total_ms=50.0,
        ),
        RequestEnded(
            request=transfer, session=f"s{transfer}", prompt_tokens=1_000, pulled_tokens=800,
            computed_tokens=200, ttft_ms=150.0, prefill_ms=100.0, pull_ms=50.0, total_ms=500.0,
            source="d",
        ),
    )  # fmt: skip
