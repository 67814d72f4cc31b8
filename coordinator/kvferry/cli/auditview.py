"""An audit for people."""

from __future__ import annotations

from kvferry.cli import render
from kvferry.core.accuracy import MOVE
from kvferry.replay.audit.decisions import COMPUTED, FAILED, PULLED
from kvferry.replay.audit.live.run import LiveReport
from kvferry.replay.audit.predictions import ErrorFactor, Judgement
from kvferry.replay.audit.run import Audit
from kvferry.replay.words import counted

SHOWN_MAX = 50
NOTES_PER_KIND_MAX = 3
FACTORS_SHOWN_MAX = 30

WRONG = {
    PULLED: "pulls took longer than computing was said to take",
    FAILED: "pulls failed, and their time was lost",
    COMPUTED: "prefixes thought too dear to pull took longer to compute than the pull was said to",
}


def show(done: Audit, lives: LiveReport | None = None) -> None:
    """Print it: what was audited, predictions, what nodes said, findings, and the verdict."""
    render.line(
        f"facts {done.first} to {done.last}: {done.messages:,} messages, {done.events:,} events"
    )
    if not done.whole:
        render.line("  the range begins in the middle: what began before it is not held against it")
    _predictions(done.predictions)
    if lives is not None:
        _lives(lives)
    _findings(done)
    count = len(done.violations)
    render.line("all invariants hold" if not count else counted(count, "violation"))
    if count:
        render.line("cure: `kvferry explain ID` tells a request's or transfer's whole story; "
                    "report it with `kvferry export --strip`")  # fmt: skip


def _findings(done: Audit) -> None:
    for finding in done.violations[:SHOWN_MAX]:
        where = f"{finding.stream} {finding.seq}" if finding.seq else "end"
        render.line(f"BROKEN {finding.invariant} at {where}: {finding.story}")
    kinds: dict[str, int] = {}
    for note in done.notes:
        kinds[note.invariant] = kinds.get(note.invariant, 0) + 1
        if kinds[note.invariant] <= NOTES_PER_KIND_MAX:
            render.line(f"note   {note.invariant} at {note.stream} {note.seq}: {note.story}")
    for name, count in kinds.items():
        if count > NOTES_PER_KIND_MAX:
            render.line(f"note   {name}: {count - NOTES_PER_KIND_MAX:,} more")
    more = max(0, len(done.violations) - SHOWN_MAX) + done.beyond
    if more:
        render.line(f"{more:,} more findings; see --json")


def _lives(lives: LiveReport) -> None:
    render.heading("living nodes")
    render.line(
        f"{len(lives.agreed):,} of {lives.asked:,} nodes hold what the ledger says at "
        f"{lives.position}: {lives.offers:,} offers and leases, of which the engines have "
        f"{lives.lent_blocks:,} blocks in their memory"
    )
    for name in lives.silent:
        render.line(
            f"  {name} is silent: it runs an older kvferry, hangs, has ended and was not missed "
            "yet, or may not answer (allow_responses in the server's users)"
        )
    for story in lives.undecided:
        render.line(f"  undecided, {story}")


def _predictions(judgement: Judgement) -> None:
    if not judgement.factors and not judgement.decisions:
        render.line("predictions: none that an outcome could be held against")
        return
    if judgement.factors:
        render.heading("predictions")
        shown = judgement.factors
        if len(shown) > FACTORS_SHOWN_MAX:
            shown = tuple(one for one in shown if not one.key)
        spaces = len({one.space for one in shown if one.space}) > 1
        render.table(
            ["of", "where", ">count", ">off by, median", ">off by, p95", ">took, of predicted"],
            [_row(one, spaces) for one in shown],
        )
        if len(shown) < len(judgement.factors):
            hidden = len(judgement.factors) - len(shown)
            render.line(f"{hidden:,} links and nodes one by one: see --json")
    judged = sum(one.judged for one in judgement.decisions)
    wrong = sum(one.wrong for one in judgement.decisions)
    cost_ms = sum(one.cost_ms for one in judgement.decisions)
    if judged:
        render.line(
            f"decisions: {wrong:,} of {judged:,} were wrong in hindsight "
            f"({render.share(wrong, judged)}) and cost {cost_ms:,.1f} ms"
        )
    for one in judgement.decisions:
        if one.wrong:
            render.line(
                f"  {one.wrong:,} of {one.judged:,} {WRONG[one.kind]}: {one.cost_ms:,.1f} ms"
            )


def _row(one: ErrorFactor, spaces: bool) -> list[object]:
    where = f"{one.space} {one.key}" if spaces and one.key else one.key or "all"
    return [
        "pull" if one.what == MOVE else "prefill",
        where,
        one.count,
        f"{one.median:.2f}×",
        f"{one.p95:.2f}×",
        f"{one.took:.2f}×",
    ]
