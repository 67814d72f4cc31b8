"""A peer server as a process of its own: prints its address, serves until its parent ends it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.unit.peers.support import KEY, SOURCE_LIFE, Source, identity

from kvferry.node.peers.server import PeerServer

if __name__ == "__main__":
    source = Source()
    source.offer("a", 4)
    server = PeerServer(KEY, identity("d0", SOURCE_LIFE), source.table)
    server.start()
    sys.stdout.write(server.address + "\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.close()
