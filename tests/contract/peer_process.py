"""A source in a process of its own, for tests that kill or freeze it.

Prints its description in hex, then serves every read until its standard input ends.
"""

from __future__ import annotations

import json
import sys

from tests.contract.pools import Pool

from kvferry_backends import registry


def main() -> None:
    config = json.loads(sys.argv[1])
    pool = Pool(config["blocks"], config["widths"])
    pool.fill(config["seed"])
    backend = registry.create(config["backend"], config["options"])
    backend.register(pool.regions, lambda transfer, grant, packed: True)
    sys.stdout.write(backend.describe().hex() + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    main()
