"""Counters of a space, and how to count without ever overflowing or growing without bound."""

from __future__ import annotations

import msgspec

COUNT_MAX = 2**62
"""Counters stop here; msgpack holds 64 bits and a writer may send any number."""
KEYS_MAX = 128
"""Distinct words that one counter keeps; later ones are counted under ``other``."""


class Totals(msgspec.Struct, kw_only=True):
    """What a space's ledger adds up to. Never decreases, never negative."""

    requests: int = 0
    prompt_tokens: int = 0
    """Of prompts that came to engines; local + pulled + computed."""
    local_tokens: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    prompt_sent: int = 0
    """Prompt tokens whose KV was sent to TileRT nodes; ``prompt_tokens`` and its parts leave them
    out."""
    bytes_sent: int = 0
    """Of sends that arrived."""
    unbalanced: int = 0
    """Requests whose local + pulled + computed tokens differ from the prompt's."""
    turns: int = 0
    """Turns that routers answered."""
    transfers_opened: int = 0
    transfers_done: int = 0
    transfers_failed: int = 0
    bytes_moved: int = 0
    pins_opened: int = 0
    """Transfers that had blocks granted, as their targets say."""
    pins_ended: int = 0
    """Ends of pins that held blocks, as their sources say."""
    pins_refused: int = 0
    events: dict[str, int] = {}
    """Applied events by name."""
    misses: dict[str, int] = {}
    """Requests without a transfer by cause; ``diverged@N`` counts as ``diverged``."""
    failures: dict[str, int] = {}
    """Failed transfers by reason."""
    evictions: dict[str, int] = {}
    """Evictions by reason."""
    evicted_blocks: dict[str, int] = {}
    """Blocks that these evictions took away, by reason."""
    gaps: dict[str, int] = {}
    """Events that were handed over and not stored, by lane."""
    strays: dict[str, int] = {}
    """Events that fit nothing known, for example an outcome of an unknown transfer."""
    repeated: dict[str, int] = {}
    """Events whose key was known already; they change nothing."""


def add(total: int, amount: int) -> int:
    """``total + amount``; a negative amount counts as 0 and the sum stops at the bound."""
    return min(total + amount, COUNT_MAX) if amount > 0 else total


def bump(counter: dict[str, int], key: str, amount: int = 1) -> None:
    """Count ``amount`` under ``key``."""
    if amount <= 0:
        return
    if key not in counter and len(counter) >= KEYS_MAX:
        key = "other"
    counter[key] = min(counter.get(key, 0) + amount, COUNT_MAX)
