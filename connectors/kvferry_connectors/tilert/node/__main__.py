"""``python -m kvferry_connectors.tilert.node``: the same as ``kvferry tilert-node``."""

from __future__ import annotations

import sys

from kvferry_connectors.tilert.node.cli import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
