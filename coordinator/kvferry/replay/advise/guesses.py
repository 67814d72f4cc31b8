"""How long an observed pull would take that has no prediction, and what that is guessed from."""

from __future__ import annotations

from kvferry.core.events import Requested
from kvferry.replay.advise.costs import MOVE_FLOOR_S, Costs
from kvferry.replay.advise.rates import Rates


class Guesses:
    """From what the ledger tells of blocks and links, and from options where it does not.

    Attributes:
        moves: pulls that were guessed.
        sizes: of these, pulls whose size comes from the option for it.
        links: of these, pulls whose link's rate comes from the option for it.
    """

    def __init__(self, costs: Costs, rates: Rates) -> None:
        self._costs = costs
        self._rates = rates
        self.moves = self.sizes = self.links = 0

    def move_s(self, space: str, node: str, asked: Requested, tokens: int) -> float:
        """What moving takes.

        Args:
            space: of the node that only observes.
            node: its name.
            asked: what it would have pulled.
            tokens: how many tokens these are.
        """
        size = self._rates.would_pull(space, node, asked)
        rate, _ = self._rates.carries(asked.source, node)
        self.moves += 1
        self.sizes += size is None
        self.links += not rate
        if size is None:
            size = tokens * self._costs.kv_bytes_per_token
        return MOVE_FLOOR_S + size / (rate or self._costs.link_bytes_s)

    def told(self) -> str:
        """The assumption in words; empty without a guess."""
        if not self.moves:
            return ""
        costs = self._costs
        options = []
        if self.sizes:
            options.append(
                f"{costs.kv_bytes_per_token:,} bytes a token (--kv-bytes-per-token) for "
                f"{self.sizes:,} of them"
            )
        if self.links:
            options.append(
                f"{costs.link_gb_per_s:g} GB/s (--link-gb-per-s) for {self.links:,} of them"
            )
        taken = f", with {' and '.join(options)}" if options else ""
        return (
            f"{self.moves:,} observed pulls had no prediction: {MOVE_FLOOR_S * 1_000:g} ms and "
            f"what their bytes take on their link is taken{taken}"
        )
