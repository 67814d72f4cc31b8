"""Names for the units of simulated memory, such that chains share what they share in truth.

The ledger names one block in 128 tokens by its hash, which commits to all before it. Large pools
are simulated in such sampled pieces. Small ones are simulated block by block: a block is named by
the next sample behind it. Where a chain ends before that, its last blocks are named by session and
by the sample before them, and keep these names in the turn that goes on there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from kvferry.ids import SHORT_BYTES, unpack_short

FINE_BLOCKS_MAX = 8_192
"""Pools of up to so many blocks are simulated block by block."""
ENDS_MAX = 1 << 17
"""Blocks behind a chain's last sample whose names are remembered; the oldest are forgotten."""
_STEP = 256
"""More than there are blocks between two samples."""


class Names:
    """The names of one space's units.

    Args:
        pool_blocks: about the size of its engines' pools.
        stride: blocks between two samples.

    Attributes:
        grain: blocks in a unit.
    """

    def __init__(self, pool_blocks: int, stride: int) -> None:
        self.grain = 1 if pool_blocks <= FINE_BLOCKS_MAX else stride
        self._stride = stride
        self._ends: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def of(self, session: str, hashes: bytes, blocks: int) -> tuple[int, ...]:
        """The units of a chain's first ``blocks`` blocks, each once, as far as they can be named.

        Args:
            session: whose chain it is; empty where that is not known.
            hashes: sampled short hashes of the chain, joined.
            blocks: blocks of the chain.
        """
        stride = self._stride
        samples = unpack_short(hashes[: blocks // stride * SHORT_BYTES])
        if self.grain == stride:
            return tuple(dict.fromkeys(samples))
        names: list[int] = []
        for span in range(-(-blocks // stride)):
            if span > len(samples):
                break
            before = samples[span - 1] if span else 0
            if span < len(samples):
                names += [
                    self._ends.get((session, before, at), samples[span] * _STEP + at)
                    for at in range(stride)
                ]
            elif before or session:
                left = blocks - span * stride
                names += [self._end(session, before, at) for at in range(left)]
        return tuple(dict.fromkeys(names))

    def _end(self, session: str, before: int, at: int) -> int:
        """The name of a block behind a chain's last sample."""
        key = (session, before, at)
        known = self._ends.get(key)
        if known is None:
            digest = hashlib.blake2b(f"{session}\0{before}\0{at}".encode(), digest_size=9).digest()
            known = self._ends[key] = int.from_bytes(digest, "big")
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)
        return known
