"""``python -m kvferry.cli``: the same as the ``kvferry`` script."""

from __future__ import annotations

from kvferry.cli.main import main

main()
