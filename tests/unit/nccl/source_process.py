"""An nccl source over the stand-in in a process of its own, for tests that kill or freeze it.

Prints its description in hex, then serves every read until its standard input ends.
"""

from __future__ import annotations

import sys

from tests.contract.pools import Pool
from tests.unit.nccl.conftest import make_end


def main() -> None:
    blocks, block_bytes, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    pool = Pool(blocks, [block_bytes])
    pool.fill(seed)
    end = make_end(pool, pace_s=0.1)
    sys.stdout.write(end.backend.describe().hex() + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    end.backend.close()


if __name__ == "__main__":
    main()
