"""A TileRT decode node that keeps what it generates, so that the next turn's prefill can pull it.

TileRT's own server runs here unedited; its engine is wrapped. See ``docs/tilert-return.md``.
"""
