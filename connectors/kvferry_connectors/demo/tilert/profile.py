"""A profile small enough for vLLM on a CPU: rows as TileRT's models have them, no indexer.

The published server knows its models by name. This adds a name, made of the package's own class;
its indexer plane stays zero. On our side the same profile stands in the connector's options.
"""

from __future__ import annotations

from typing import Any

LAYERS = 3
PROFILE: dict[str, Any] = {"name": "tiny", "layers": LAYERS, "version": 900, "indexer": False}


def register() -> None:
    """In a decode server's process: let ``--model tiny`` be known."""
    from tilert.pd_vllm.profiles import base
    from tilert.pd_vllm.profiles.mla_nsa import MlaNsaProfile

    base.register(
        MlaNsaProfile(
            name=PROFILE["name"],
            num_layers=LAYERS,
            layout_version=PROFILE["version"],
            engine_factory=None,
        )
    )
