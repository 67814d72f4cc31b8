"""The figures as tables."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from kvferry_connectors.demo.figures import Figures, LedgerFigures
from kvferry_connectors.demo.settings import DemoSettings

COUNTS = ("prompt\ntokens", "computed\nby P", "pulled\nD to P", "pulled\nP to D")
BLOCK_EVENT_NAMES = ("produced", "retained", "evicted", "requested", "transferred")


def print_figures(console: Console, figures: Figures, settings: DemoSettings) -> None:
    """Everything that was found."""
    console.print()
    console.print(_turns(figures))
    console.print(_caption(settings), style="dim", highlight=False)
    console.print()
    console.print(_cases(figures))
    for case in figures.cases:
        console.print(f"  {case.case}: {case.line}", markup=False, highlight=False)
    if figures.explained:
        console.print("\n[bold]kvferry explain[/bold] of the second turn of conversation A")
        console.print(figures.explained.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if figures.ledger is not None:
        print_ledger(console, figures.ledger)
    console.print(
        f"\nOutputs: {figures.compared} answers compared with one engine without any transfer, "
        + ("all equal." if figures.outputs_equal else f"{len(figures.different)} differ."),
        highlight=False,
    )
    problems = figures.problems()
    for text in problems:
        console.print(f"[red]wrong:[/red] {text}")
    if not problems:
        console.print(f"[green]All as it must be[/green], in {figures.seconds:.0f} s.")


def table(title: str, first: str, columns: tuple[str, ...]) -> Table:
    """An empty one, whose columns but the first hold numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 0)
    )
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _turns(figures: Figures) -> Table:
    made = table(
        "Two conversations, turn by turn",
        "turn",
        (*COUNTS, "found\nby", "TTFT\nreuse", "TTFT\noff", "off /\nreuse"),
    )
    for turn in figures.turns:
        made.add_row(
            f"{turn.conversation}{turn.turn}",
            f"{turn.prompt_tokens:,}",
            f"{turn.computed_tokens:,}",
            f"{turn.pulled_d_to_p:,}",
            f"{turn.pulled_p_to_d:,}",
            turn.found_by or "-",
            f"{turn.ttft_ms:,.0f}",
            f"{turn.ttft_off_ms:,.0f}",
            f"{turn.ttft_off_ms / turn.ttft_ms:.1f}",
        )
    return made


def _caption(settings: DemoSettings) -> str:
    return (
        "Between two turns of a conversation other requests took all of P's own cache. The turn "
        "with reuse off has the same prompt under another cache_salt; P computes all of it; it "
        "goes first in every second turn. TTFT in ms: until the client sees the first token; B is "
        f"not streamed, so until it sees the {settings.answer} tokens of the answer. After a "
        "streamed turn P finds D by a plan, for vLLM sends no hint in a stream, else by D's "
        "hint. All of this shares one CPU: it shows what is not computed again, and is no "
        "measure of a GPU."
    )


def _cases(figures: Figures) -> Table:
    made = table("Turns that do not simply continue", "case", (*COUNTS, "as\nexpected"))
    for case in figures.cases:
        made.add_row(
            case.case,
            f"{case.prompt_tokens:,}",
            f"{case.computed_tokens:,}",
            f"{case.pulled_d_to_p:,}",
            f"{case.pulled_p_to_d:,}",
            "[green]yes[/green]" if case.ok else "[red]NO[/red]",
        )
    return made


def print_ledger(console: Console, ledger: LedgerFigures) -> None:
    """What the ledger of the run holds."""

    def yes(value: bool) -> str:
        return "[green]yes[/green]" if value else "[red]NO[/red]"

    console.print("\n[bold]The ledger[/bold]")
    counts = ", ".join(f"{ledger.events.get(name, 0)} {name}" for name in BLOCK_EVENT_NAMES)
    others = sum(n for name, n in ledger.events.items() if name not in BLOCK_EVENT_NAMES)
    console.print(f"  block events: {counts}; {others} others", highlight=False)
    console.print(
        f"  messages that cannot be decoded: {ledger.quarantined}; events lost: {ledger.gaps}",
        highlight=False,
    )
    console.print(
        f"  every transfer has one outcome: {yes(not ledger.unsettled_transfers)}; every "
        "request's local + pulled + computed tokens are its prompt: "
        + yes(not ledger.unbalanced_requests)
    )
    for one in ledger.engines:
        sources = ", ".join(f"{name} {count:,}" for name, count in one.metrics.items())
        console.print(
            f"  {one.node} ({one.incarnation[:6]}): vLLM's own metrics say {sources}; "
            f"the ledger agrees: {yes(one.equal)}",
            highlight=False,
        )
    console.print(
        f"  replayed up to {ledger.position} in another process, it gives the coordinator's "
        f"state: {yes(ledger.live_digest == ledger.replay_digest)} "
        f"(digest {ledger.live_digest[:12]})",
        highlight=False,
    )
