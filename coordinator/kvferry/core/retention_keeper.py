"""Which of the nodes that hold a chain keeps it in its host tier.

After a turn the prompt lies on the node that computed it and on the one that answered. If both
kept it, half of all host memory would hold what the other half holds. So one of them keeps it, and
the others leave it to their caches. All come to the same one without asking anybody.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping

_SPAN = 2.0**64


def shares(host_blocks: Mapping[str, int], roles: Mapping[str, str]) -> dict[str, int]:
    """How much each node is to keep, relative to the others with which it may share a chain.

    A chain lies on one node of each role: where six prefill engines and two decode engines hold
    every session, a decode engine is asked about half of all of them and a prefill engine about a
    sixth. So what decides between two nodes is what all nodes of their roles have together.

    Args:
        host_blocks: size of each node's host tier.
        roles: of the nodes; one without a role stands for itself.
    """
    together: Counter[str] = Counter()
    for node, blocks in host_blocks.items():
        together[roles.get(node, "")] += blocks
    return {
        node: together[role] if blocks and (role := roles.get(node, "")) else blocks
        for node, blocks in host_blocks.items()
    }


def keeper(name: str, held: Mapping[str, int]) -> str:
    """The node that keeps what is called ``name``; empty if none can.

    Each node keeps in proportion to its share (rendezvous hashing), and a node that comes or goes
    changes only what is its own.

    Args:
        name: of the session, or anything else that all holders call by one name.
        held: each holder's share (:func:`shares`); 0 for a node without a host tier, or where
            that is not known.
    """
    able = [(node, share) for node, share in held.items() if share > 0]
    return max(able, key=lambda one: (_score(name, *one), one[0]), default=("", 0))[0]


def _score(name: str, node: str, share: int) -> float:
    digest = hashlib.blake2b(f"{node}\0{name}".encode(), digest_size=8).digest()
    even = (int.from_bytes(digest, "big") + 0.5) / _SPAN
    return share / -math.log(even) if even < 1.0 else math.inf
