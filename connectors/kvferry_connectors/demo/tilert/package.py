"""Where TileRT's published package is unpacked, and what a process needs to use it on loopback."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

CURE = "run `make setup-engine` in a checkout, or set KVFERRY_TILERT to the unpacked wheel's folder"


def package() -> Path | None:
    """The folder with the unpacked package, or ``None``; see the Makefile's step ``.tilert``."""
    folder = Path(os.environ.get("KVFERRY_TILERT") or Path(sys.prefix) / "tilert")
    return folder if (folder / "tilert" / "pd_vllm").is_dir() else None


def missing() -> str:
    """Why the decode server cannot be started here, and the cure; empty if it can."""
    folder = package()
    if folder is None:
        return f"the tilert wheel is not unpacked: {CURE}"
    absent = [name for name in ("scipy", "nixl") if not (folder / name).is_dir()]
    absent += [name for name in ("torch", "fastapi", "nixl_cu12") if find_spec(name) is None]
    return f"TileRT's decode server needs {', '.join(absent)}: {CURE}" if absent else ""


def environment() -> dict[str, str]:
    """What a process that uses the package has in its environment besides ours."""
    where = package()
    assert where is not None, missing()
    path = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{where}{os.pathsep}{path}" if path else str(where),
        "TILERT_PD_PROBE_ADDR": "127.0.0.1",
        "UCX_NET_DEVICES": "lo",
        "UCX_TLS": "tcp,self",
        "OMP_NUM_THREADS": "1",
    }
