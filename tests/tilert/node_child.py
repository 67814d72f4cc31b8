"""The process of a TileRT decode server in tests: its own ``main``, behind the shim.

Arguments: a folder for what is told to the test, then the server's own arguments. With
``spy.json`` in that folder the engine is a :class:`~tests.tilert.spy.SpyEngine` made from it,
otherwise the stub that the package ships. With ``keep.json`` the server is started by
``kvferry tilert-node`` with these arguments. The ports go to ``ports.json`` once both are bound.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.tilert import spy

from kvferry_connectors.demo.tilert.serving import end_with_the_parent, prepare


def main() -> None:
    end_with_the_parent()
    folder = Path(sys.argv[1])
    sys.argv = ["decode_server", *sys.argv[2:]]
    prepare(folder)
    from tilert.pd_vllm import decode_server, engine_iface

    settings = folder / "spy.json"
    if settings.exists():
        given = json.loads(settings.read_text())
        engine_iface.StubEngine = lambda: spy.SpyEngine(folder, **given)
    keep = folder / "keep.json"
    if keep.exists():
        from kvferry_connectors.tilert.node.cli import run

        sys.exit(run([*json.loads(keep.read_text()), "--", *sys.argv[1:]]))
    decode_server.main()


if __name__ == "__main__":
    main()
