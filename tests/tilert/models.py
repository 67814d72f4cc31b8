"""A small model whose KV rows are as long as those of TileRT's models; random saved weights."""

from __future__ import annotations

from pathlib import Path

from kvferry_connectors.demo.model import Shape, ensure_model
from kvferry_connectors.demo.tilert.profile import LAYERS


def dense_model(folder: Path) -> Path:
    """A Llama: keys and values of three heads of 96 in bfloat16 are 1,152 bytes for each token."""
    shape = Shape(
        hidden=96, layers=LAYERS, heads=3, kv_heads=3, head_dim=96, mlp=128, positions=2048
    )
    return ensure_model(folder, shape)
