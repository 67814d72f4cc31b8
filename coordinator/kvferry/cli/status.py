"""`kvferry status`: who is there, what is offered, what moves, how much is reused, and why not."""

from __future__ import annotations

from typing import Any

from kvferry.cli import guard, replicas
from kvferry.cli.context import Target, find_ledger, open_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.cli.statusview import print_status
from kvferry.core.messages import Announce
from kvferry.daemon.messages import Query
from kvferry.errors import LedgerUnavailable
from kvferry.ports.log import FACTS_STREAM, BusPort
from kvferry.replay.fold import fold_to
from kvferry.replay.status import summarize

FROM_COORDINATOR, FROM_LEDGER = "coordinator", "ledger"


@guard.guarded
def command(nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Show nodes, offers, transfers, reuse in tokens, and why requests reused nothing.

    Asks a coordinator; without one it folds the ledger itself and says so.

    Examples:

      kvferry status

      kvferry status --json | jq '.spaces[].reuse'
    """
    document = guard.run(collect(find_ledger(nats)))
    if as_json:
        print_document(document)
    else:
        print_status(document)


async def collect(target: Target) -> dict[str, Any]:
    """The status document, from a coordinator or, where none answers, folded from the ledger."""
    async with open_ledger(target) as ledger:
        alive = await replicas.heard(ledger)
        last = (await ledger.bounds(FACTS_STREAM)).last
        document: dict[str, Any] = {
            "url": target.shown,
            "coordinator": None,
            "last_seq": last,
            "coordinators": [
                {
                    "replica": one.replica,
                    "leader": one.leader,
                    "term": one.term,
                    "position": one.position,
                }
                for one in alive
            ],
        }
        answer, why = await _ask(ledger, alive)
        if answer is not None:
            return document | {"source": FROM_COORDINATOR, "source_why": ""} | answer
        folded = summarize(await fold_to(ledger))
        return document | {"source": FROM_LEDGER, "source_why": why} | folded


async def _ask(bus: BusPort, alive: list[Announce]) -> tuple[dict[str, Any] | None, str]:
    """The coordinator's answer, or why there is none."""
    if not alive:
        return None, "no coordinator is running"
    try:
        answer = await replicas.ask(bus, alive, Query(verb="status"))
    except LedgerUnavailable as error:
        return None, str(error)
    return (None, str(answer["error"])) if "error" in answer else (answer, "")
