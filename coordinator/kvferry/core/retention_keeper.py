"""Which of the nodes that hold a chain keeps it in its host tier.

After a turn the prompt lies on the node that computed it and on the one that answered. If both
kept it, half of all host memory would hold what the other half holds. So one of them keeps it, and
the others leave it to their caches. All come to the same one without asking anybody.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

_SPAN = 2.0**64


def keeper(name: str, host_blocks: Mapping[str, int]) -> str:
    """The node that keeps what is called ``name``; empty if none can.

    Each node gets a share in proportion to its host tier (rendezvous hashing), and a node that
    comes or goes changes only what is its own.

    Args:
        name: of the session, or anything else that all holders call by one name.
        host_blocks: size of each holder's host tier; 0 for a node without one, or where that is
            not known.
    """
    able = [(node, blocks) for node, blocks in host_blocks.items() if blocks > 0]
    return max(able, key=lambda one: (_score(name, *one), one[0]), default=("", 0))[0]


def _score(name: str, node: str, blocks: int) -> float:
    digest = hashlib.blake2b(f"{node}\0{name}".encode(), digest_size=8).digest()
    even = (int.from_bytes(digest, "big") + 0.5) / _SPAN
    return blocks / -math.log(even) if even < 1.0 else math.inf
