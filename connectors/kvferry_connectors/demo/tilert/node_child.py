"""The process of a decode node in the demo: ``kvferry tilert-node`` behind the shim.

Arguments: a folder for what is told to the demo, then those of the command.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvferry_connectors.demo.tilert.serving import end_with_the_parent, prepare


def main() -> int:
    """Serve until the end of the command, or of the demo."""
    end_with_the_parent()
    prepare(Path(sys.argv[1]))
    from kvferry_connectors.tilert.node.cli import run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
