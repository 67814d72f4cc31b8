"""Makes a checkout that is only on ``PYTHONPATH`` findable as the distribution it would be.

Backends and commands are found through entry points, which need an installed distribution. Where
nothing can be installed, a folder with just that metadata does: ``python -m
tests.gpu.entry_points FOLDER``, then put FOLDER on ``PYTHONPATH``.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_metadata(folder: Path) -> Path:
    """Write the metadata of this checkout into ``folder``; returns it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(header)
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


if __name__ == "__main__":
    print(write_metadata(Path(sys.argv[1])))
