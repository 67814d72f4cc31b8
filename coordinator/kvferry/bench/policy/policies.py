"""The policies that are compared, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvferry.errors import ConfigError

INFINITE, OURS, LEASES = "infinite", "ours", "leases"
LRU_HOST, LRU, ONE_WAY, TTL = "lru-host", "lru", "one-way", "ttl"

POLICIES: Final = {
    INFINITE: "nothing is ever forgotten, and every engine has everything at once",
    OURS: "offers from the cache, leases by value, a host tier by value",
    LRU_HOST: "offers from the cache; host memory keeps what the cache dropped last",
    LEASES: "offers from the cache, leases by value; no host tier",
    LRU: "offers from the cache alone: what each engine used last",
    ONE_WAY: "each engine's own cache; KV goes from prefill to decode and never back",
    TTL: "decode engines pin a finished request until it is read or its time is up",
}
HOSTED: Final = (OURS, LRU_HOST)
"""Policies that use host memory."""


def parse_policies(texts: Sequence[str]) -> list[str]:
    """Names given one by one or separated by commas; the infinite cache is always among them.

    Raises:
        ConfigError: one is not known.
    """
    names = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    for name in names:
        if name not in POLICIES:
            raise ConfigError(f"--policy {name!r} is not known: use {', '.join(POLICIES)}")
    return [name for name in POLICIES if name in names or name == INFINITE]
