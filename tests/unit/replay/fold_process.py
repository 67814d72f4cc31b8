"""Fold a ledger in a process of its own and print position and digest as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from kvferry.core.digest import digest
from kvferry.ledger.jetstream import connect
from kvferry.replay.fold import fold_to


async def main(url: str, to_seq: int, from_snapshot: bool) -> None:
    ledger = await connect(url, name="fold")
    try:
        state = await fold_to(ledger, to_seq=to_seq, from_snapshot=from_snapshot)
        print(json.dumps({"position": state.position, "digest": digest(state)}))
    finally:
        await ledger.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "snapshot"))
