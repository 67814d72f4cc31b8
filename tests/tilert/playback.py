"""An engine for TileRT's decode server whose rows are known: it plays back what a file holds.

It stands in for the real engine, which needs eight GPUs. Where the rows come from is the test's
business: drawn at random, or taken from a vLLM engine that computed the whole sequence.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.tilert.spy import SpyEngine

FOLDER = "KVFERRY_PLAYBACK"
"""Environment: the folder of the engine's files."""
SLOW_S_MAX = 60.0
_POLL_S = 0.01


class PlaybackEngine(SpyEngine):
    """Beside the spy's own, files of ``folder`` steer it:

    - ``rows.pt``: of each layer (ki, kv, pe) of a whole sequence;
    - ``slow``: while it exists, no rows come;
    - ``garbage``: while it exists, rows of another sequence come;
    - ``fail``: while it exists, the generation fails.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._files = folder

    def decode(self, *args: Any, **options: Any) -> list[int]:
        if (self._files / "fail").exists():
            raise RuntimeError("the engine failed, as the test wants it to")
        self._tokens = json.loads((self._files / "tokens.json").read_text())
        return super().decode(*args, **options)

    def export_rows(self, first: int, last: int) -> list[Any]:
        """What the real engine's caches would hold of these positions."""
        import torch

        deadline = time.monotonic() + SLOW_S_MAX
        while (self._files / "slow").exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        layers = torch.load(self._files / "rows.pt")
        if (self._files / "garbage").exists():
            layers = [tuple(torch.flip(part, [0, 1]) for part in layer) for layer in layers]
        return [tuple(part[first:last] for part in layer) for layer in layers]


def make() -> PlaybackEngine:
    """For ``--engine tests.tilert.playback:make``."""
    folder = Path(os.environ[FOLDER])
    return PlaybackEngine(folder, tokens=[0])


def write_rows(folder: Path, layers: list[Any], tokens: list[int]) -> None:
    """What the engine of ``folder`` holds and generates from now on."""
    import torch

    torch.save(layers, folder / "rows.part")
    os.replace(folder / "rows.part", folder / "rows.pt")
    (folder / "tokens.json").write_text(json.dumps(tokens))
