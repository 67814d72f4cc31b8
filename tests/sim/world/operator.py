"""An operator: asks one coordinator after the other until one has done it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.kernel.kernel import Process
from tests.sim.world.connection import Connection

from kvferry.core.messages import query_subject
from kvferry.daemon.messages import Query, decode_answer, encode_query
from kvferry.errors import LedgerError

if TYPE_CHECKING:
    from tests.sim.world.world import World

ASK_S = 2.0
ROUNDS_MAX = 20


class Operator:
    """One command, as ``kvferry pause`` gives it."""

    def __init__(self, world: World, verb: str) -> None:
        self._world, self._verb = world, verb
        self.done = False
        world.operators.append(self)
        process = Process(world.kernel, f"op{len(world.operators)}")
        world.kernel.note("operator", verb)
        world.kernel.spawn(process, process.name, self._main)

    def _main(self) -> None:
        asyncio.new_event_loop().run_until_complete(self._ask())
        self.done = True

    async def _ask(self) -> None:
        assert self._world.ledger is not None
        connection = Connection(self._world.ledger)
        question = encode_query(Query(verb=self._verb, who="sim"))
        for _ in range(ROUNDS_MAX):
            for name in list(self._world.replicas):
                try:
                    data = await connection.request(query_subject(name), question, ASK_S)
                except LedgerError:
                    continue
                if "error" not in decode_answer(data):
                    return
            await asyncio.sleep(0.3)
