"""The figures as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kvferry_connectors.demo.report import print_ledger, table
from kvferry_connectors.demo.tilert.figures import COMPARED, STUB, PoolFigures

COLUMNS = (
    "prompt\ntokens",
    "computed\nby P",
    "pulled\nby P",
    "pulled\nfrom",
    "slot",
    "fence",
    "sent\nkB",
    "sent\nms",
    "blocks\nkept",
)


def print_pool(console: Console, figures: PoolFigures) -> None:
    """Everything that was found."""
    console.print()
    console.print(_turns(figures))
    console.print(_caption(), style="dim", highlight=False)
    console.print("\n[bold]What does not go as usual[/bold]")
    for case in figures.cases:
        mark = "[green]as expected[/green]" if case.ok else f"[red]NOT[/red] {case.expected}"
        console.print(f"  {case.case}: ", end="", markup=False, highlight=False)
        console.print(case.seen, end="; ", markup=False, highlight=False)
        console.print(mark, highlight=False)
    if figures.explained:
        console.print("\n[bold]kvferry explain[/bold] of the second turn of conversation A")
        console.print(figures.explained.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if figures.ledger is not None:
        print_ledger(console, figures.ledger)
        found = len(figures.violations)
        audit = "[green]nothing[/green]" if not found else f"[red]{found} violations[/red]"
        console.print(f"  kvferry audit finds {audit}", highlight=False)
    console.print(f"\nOutputs: {STUB}.", highlight=False)
    equal = "all equal" if figures.outputs_equal else f"{len(figures.different)} differ"
    console.print(f"Compared: {COMPARED}: {figures.compared}, {equal}.", highlight=False)
    problems = figures.problems()
    for text in problems:
        console.print("[red]wrong:[/red] ", end="")
        console.print(text, markup=False, highlight=False)
    if not problems:
        console.print(f"[green]All as it must be[/green], in {figures.seconds:.0f} s.")


def _turns(figures: PoolFigures) -> Table:
    made = table("Two conversations on TileRT's nodes, turn by turn", "turn", COLUMNS)
    for turn in figures.turns:
        made.add_row(
            f"{turn.conversation}{turn.turn}",
            f"{turn.prompt_tokens:,}",
            f"{turn.computed_tokens:,}",
            f"{turn.pulled_tokens:,}",
            turn.source or "-",
            turn.node,
            f"{turn.slot_generation}",
            f"{turn.sent_bytes / 1000:,.0f}",
            f"{turn.send_ms:,.0f}",
            f"{turn.returned_blocks}",
        )
    return made


def _caption() -> str:
    return (
        "All of it read from the ledger. P is vLLM with a small model of latent attention on the "
        "CPU, which keeps no prefix cache, so what it does not pull it computes. Its KV is written "
        "into the node's receive buffer under the lease of that fence. The node keeps the blocks "
        "of prompt and answer in its host memory, and the next turn's prefill pulls them by a "
        "plan. Plans move whatever is held here (--cost off): so small a model is sooner computed."
    )
