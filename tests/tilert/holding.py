"""Somebody else's request in a decode node's one slot; also as a process that can be killed.

Arguments of the process: the node's control port, and the request's rid. It says ``admitted``.
"""

from __future__ import annotations

import sys
import threading

from kvferry_connectors.tilert.admission import Admitted, Wanted, admit
from kvferry_connectors.tilert.layout import Shape
from kvferry_connectors.tilert.profiles import FP8_DS_MLA, find
from kvferry_connectors.tilert.wire import Done, send

STAYS_S = 300.0


class Holder:
    """All ranks of a request are admitted to a dsv32 node, and nothing is written."""

    def __init__(self, port: int, rid: str) -> None:
        asked = Wanted(
            host="127.0.0.1",
            port=port,
            rid=rid,
            shape=Shape(profile=find("dsv32"), form=FP8_DS_MLA, tokens=64, block_tokens=64),
            transport="nixl",
            senders=8,
            last_prompt_token=1,
            timeout_s=30.0,
            window_s=10.0,
        )
        self.held: list[Admitted] = [admit(asked, rank, threading.Event()) for rank in range(8)]
        self.rid = rid

    def complete(self) -> None:
        """Everything is there, it says."""
        for one in self.held:
            send(one.connection, Done(rid=self.rid, rank=one.rank, generation=one.generation))
            one.connection.close()


def main() -> None:
    holder = Holder(int(sys.argv[1]), sys.argv[2])
    sys.stdout.write("admitted\n")
    sys.stdout.flush()
    threading.Event().wait(STAYS_S)
    holder.complete()


if __name__ == "__main__":
    main()
