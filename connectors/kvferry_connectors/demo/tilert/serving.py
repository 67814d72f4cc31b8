"""What the process of a decode server does before TileRT's own ``main`` runs in it."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from kvferry_connectors.demo.tilert import profile, shim

PORTS = "ports.json"
"""In the server's folder once it listens: its control port and its HTTP port."""


def end_with_the_parent() -> None:
    """Nobody stops this process if its parent is killed; but then standard input ends."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def prepare(folder: Path) -> None:
    """Let the server run on a CPU and on loopback, know the tiny profile, and tell its ports in
    ``folder``."""
    from tilert.pd_vllm import decode_server, receive_server

    shim.without_accelerator()
    profile.register()
    ports: list[int] = []

    def bound(port: int) -> None:
        ports.append(port)
        if len(ports) == 2:
            told = folder / PORTS
            told.with_suffix(".part").write_text(json.dumps(ports))
            os.replace(told.with_suffix(".part"), told)

    shim.on_loopback(receive_server, decode_server, bound=bound)
