"""Have the coordinator decide something, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.context import find_ledger, open_ledger
from kvferry.cli.jsonable import print_document
from kvferry.daemon.messages import Answer, Query
from kvferry.errors import LedgerUnavailable


async def order(
    query: Query,
    nats: str | None,
    as_json: bool,
    *,
    nobody: str,
    lines: Callable[[Answer], Iterable[str]],
) -> None:
    """Send ``query`` to the leader; print its answer, as a document or in ``lines``.

    Raises:
        LedgerUnavailable: no coordinator runs, with what follows from that as ``nobody`` says it;
            or none of them answered in time.
        typer.Exit: the coordinator refused; that is printed too.
    """
    async with open_ledger(find_ledger(nats)) as ledger:
        alive = await replicas.heard(ledger)
        if not alive:
            raise LedgerUnavailable(
                f"no coordinator is running, {nobody}\n"
                "cure: start one with `kvferry up` or `kvferry coordinator`"
            )
        answer = await replicas.ask(ledger, alive, query)
    if as_json:
        print_document(answer)
    if "error" in answer:
        if not as_json:
            guard.complain(str(answer["error"]))
        raise typer.Exit(guard.TROUBLE)
    if not as_json:
        for line in lines(answer):
            typer.echo(line)
