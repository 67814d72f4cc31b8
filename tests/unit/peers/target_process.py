"""A target as a process of its own: pulls one block from a file that stands for source memory.

Arguments: address, file that is the source's memory, file whose appearance starts the read,
``settle`` or ``skip``. Says ``reading`` once it holds a grant and will read, then the outcome.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.unit.peers.fake_backend import FakeBackend
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    SOURCE_LIFE,
    TARGET_LIFE,
    chain,
    eventually,
    identity,
)

from kvferry.node.peers.client import PeerClient
from kvferry.node.pull.puller import Puller, PullJob
from kvferry.ports.backend import Verify


def main(address: str, memory: Path, start: Path, mode: str) -> None:
    backend = FakeBackend()
    backend.gate.clear()
    backend.read = lambda block: memory.read_bytes()
    client = PeerClient(KEY, identity("p0", TARGET_LIFE))
    puller = Puller(client, [backend], pin_ms=60_000)
    puller.unsafe_skip_done = mode == "skip"
    puller.submit(
        PullJob(
            transfer="t",
            request="r",
            address=address,
            incarnation=SOURCE_LIFE,
            hashes=chain("a", 1),
            start=0,
            target_blocks=(100,),
            rank=0,
            ranks=1,
            verify=Verify.OFF,
            deadline_s=10 * BOUND_S,
        )
    )
    assert backend.posted.wait(BOUND_S)
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    while not start.exists():
        time.sleep(0.01)
    backend.gate.set()
    assert eventually(lambda: puller.pending == 0)
    result = puller.take()[0]
    sys.stdout.write(f"{result.ok} {result.reason or '-'} {backend.pool[100].decode()}\n")
    puller.close()
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
