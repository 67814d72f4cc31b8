"""Sources in a process of their own: most backends cannot read the memory of their own process.

Carries out one command a line of its standard input, each with one line of answer, until the
input ends. It serves reads all the while, between commands too.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

from tests.contract.kinds import KINDS, Kind
from tests.contract.permits import PERMITS
from tests.contract.pools import Pool, snapshot

from kvferry.errors import KVFerryError
from kvferry.ports.backend import Backend, ReadRequest


class Sources:
    """The pools and backends of this process, by number."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._all: list[tuple[Pool, Backend]] = []

    def serve(
        self,
        blocks: int,
        widths: list[int],
        gap: int,
        seed: str,
        permit: str,
        options: dict[str, object],
    ) -> dict[str, object]:
        pool = self._kind.pool(blocks, widths, gap, source=True)
        pool.fill(seed)
        backend = self._kind.make(**options)
        self._all.append((pool, backend))
        backend.register(pool.regions, PERMITS[permit])
        return {"number": len(self._all) - 1, "description": backend.describe().hex()}

    def digest(self, number: int) -> dict[str, object]:
        return {"sha256": hashlib.sha256(snapshot(self._all[number][0])).hexdigest()}

    def fill(self, number: int, seed: str) -> dict[str, object]:
        self._all[number][0].fill(seed)
        return {}

    def block(self, number: int, block: int) -> dict[str, object]:
        return {"bytes": self._all[number][0].get(block).hex()}

    def read(
        self, number: int, peer: str, sources: list[int], targets: list[int], wait_s: float
    ) -> dict[str, object]:
        posted = self._all[number][1].post(
            ReadRequest(
                transfer=f"from-{os.getpid()}-{number}",
                peer=bytes.fromhex(peer),
                grant=b"",
                source_blocks=sources,
                target_blocks=targets,
                deadline_s=wait_s,
            )
        )
        outcome = posted.wait(wait_s) or posted.abort()
        return {"error": outcome.error, "detail": outcome.detail}

    def close(self, number: int) -> dict[str, object]:
        self._all[number][1].close()
        return {}

    def close_all(self) -> None:
        for _, backend in self._all:
            backend.close()


def main() -> None:
    sources = Sources(KINDS[int(sys.argv[1])])
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        act = getattr(sources, command.pop("do"))
        try:
            answer = act(**command)
        except KVFerryError as error:
            answer = {"raised": f"{type(error).__name__}: {error}"}
        # A library may write to standard output too: ours is marked.
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    sources.close_all()
    sys.stdout.flush()
    # Some data-plane libraries crash in their exit handlers; the work is done and closed.
    os._exit(0)


if __name__ == "__main__":
    main()
