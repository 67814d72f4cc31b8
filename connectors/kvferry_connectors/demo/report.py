"""The figures as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kvferry_connectors.demo.figures import Figures, LedgerFigures
from kvferry_connectors.demo.settings import DemoSettings

BLOCK_EVENT_NAMES = ("produced", "retained", "evicted", "requested", "transferred")


def print_figures(console: Console, figures: Figures, settings: DemoSettings) -> None:
    """Everything that was found."""
    console.print()
    console.print(_turns(figures))
    console.print(_caption(settings), style="dim")
    console.print()
    console.print(_cases(figures))
    if figures.explained:
        console.print("\n[bold]kvferry explain[/bold] of the second turn of conversation A:")
        console.print(figures.explained.rstrip(), markup=False, highlight=False)
    if figures.ledger is not None:
        _print_ledger(console, figures.ledger)
    console.print(
        f"\nOutputs: {figures.compared} answers compared with one engine without any transfer, "
        + ("all equal." if figures.outputs_equal else f"{len(figures.different)} differ.")
    )
    problems = figures.problems()
    for text in problems:
        console.print(f"[red]wrong:[/red] {text}")
    if not problems:
        console.print(f"[green]All as it must be[/green], in {figures.seconds:.0f} s.")


def _turns(figures: Figures) -> Table:
    table = Table(title="Two conversations, turn by turn", title_justify="left")
    table.add_column("turn")
    for name in ("prompt tokens", "computed by P", "pulled D to P", "pulled P to D"):
        table.add_column(name, justify="right")
    table.add_column("found by")
    table.add_column("TTFT, reuse", justify="right")
    table.add_column("TTFT, reuse off", justify="right")
    table.add_column("off ÷ reuse", justify="right")
    for turn in figures.turns:
        table.add_row(
            f"{turn.conversation}{turn.turn}",
            f"{turn.prompt_tokens:,}",
            f"{turn.computed_tokens:,}",
            f"{turn.pulled_d_to_p:,}",
            f"{turn.pulled_p_to_d:,}",
            turn.found_by or "-",
            f"{turn.ttft_ms:,.0f} ms",
            f"{turn.ttft_off_ms:,.0f} ms",
            f"{turn.ttft_off_ms / turn.ttft_ms:.1f}",
        )
    return table


def _caption(settings: DemoSettings) -> str:
    return (
        f"Before each turn {settings.fillers} other requests of {settings.filler:,} tokens took "
        "all of P's own cache. The turn with reuse off has the same prompt under another "
        "cache_salt, P computes all of it, and it goes first in every second turn. "
        f"TTFT: until the client sees the first token; B is not streamed, so until it sees "
        f"{settings.answer} tokens. This shows what is not computed again; it is no measure of "
        "a GPU, where computing is faster."
    )


def _cases(figures: Figures) -> Table:
    table = Table(title="Turns that do not simply continue", title_justify="left")
    table.add_column("case")
    for name in ("prompt tokens", "computed by P", "pulled D to P", "pulled P to D"):
        table.add_column(name, justify="right")
    table.add_column("the reply's x-kvferry header")
    table.add_column("")
    for case in figures.cases:
        table.add_row(
            case.case,
            f"{case.prompt_tokens:,}",
            f"{case.computed_tokens:,}",
            f"{case.pulled_d_to_p:,}",
            f"{case.pulled_p_to_d:,}",
            case.line,
            "[green]as expected[/green]" if case.ok else "[red]WRONG[/red]",
        )
    return table


def _print_ledger(console: Console, ledger: LedgerFigures) -> None:
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
