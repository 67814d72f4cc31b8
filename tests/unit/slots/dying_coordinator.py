"""A coordinator in a process of its own that dies between storing a lease and answering for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from tests.unit.daemon.support import quick

from kvferry.core.events import SlotChanged
from kvferry.daemon.coordinator import Coordinator
from kvferry.ledger.codec import decode
from kvferry.ledger.jetstream import connect


class Deadly:
    """A ledger whose acknowledgement of a lease is the last thing that its user sees."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, subject: str, data: bytes, **more: Any) -> int:
        seq: int = await self._ledger.append(subject, data, **more)
        for entry in decode(data).entries:
            if isinstance(entry.event, SlotChanged) and entry.event.change == "granted":
                os.kill(os.getpid(), signal.SIGKILL)
        return seq


async def main(url: str, replica: str) -> None:
    ledger = await connect(url, name=replica)
    await Coordinator(Deadly(ledger), ledger, ledger, quick(replica=replica)).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
