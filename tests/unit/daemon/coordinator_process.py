"""A coordinator in a process of its own, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import sys

from tests.unit.daemon.support import quick

from kvferry.daemon.coordinator import Coordinator
from kvferry.ledger.jetstream import connect


async def main(url: str, replica: str) -> None:
    ledger = await connect(url, name=replica)
    try:
        coordinator = Coordinator(ledger, ledger, ledger, quick(replica=replica))
        await coordinator.run(handle_signals=True)
    finally:
        await ledger.close()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    asyncio.run(main(sys.argv[1], sys.argv[2]))
