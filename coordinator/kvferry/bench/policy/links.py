"""Time and bytes on the ways between engines, and what nodes learn of them.

A way carries one move after the other. What a move takes is the simulation's truth; what nodes
expect of the next one is learned from those that were made, with the same model as in the ledger.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from kvferry.bench.policy.shapes import Shape
from kvferry.core.cost import LinkCost, PrefillCost, predict_move_ms, predict_recompute_ms


class Links:
    """All ways of a fleet."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._busy_until_s: defaultdict[str, float] = defaultdict(float)
        self._costs: dict[tuple[str, str, bool], LinkCost] = {}
        self.prefill: defaultdict[str, PrefillCost] = defaultdict(PrefillCost)
        """By node."""
        self.bytes: Counter[str] = Counter()
        """Bytes moved, by kind of way."""

    def known(self, source: str, target: str, *, from_host: bool) -> LinkCost | None:
        """What was learned of a way; None before its first move."""
        return self._costs.get((source, target, from_host))

    def queue_s(self, source: str, target: str, now_s: float, *, from_host: bool) -> float:
        """Wait before a move could begin."""
        ways = _ways(source, target, from_host)
        return max(0.0, max(self._busy_until_s[way] for way in ways) - now_s)

    def move(
        self, source: str, target: str, kind: str, size: int, now_s: float, *, from_host: bool
    ) -> float:
        """Move ``size`` bytes as soon as the way is free; when the move ends."""
        begin_s = now_s + self.queue_s(source, target, now_s, from_host=from_host)
        took_s = self._takes_s(source, target, size, from_host)
        for way in _ways(source, target, from_host):
            self._busy_until_s[way] = begin_s + took_s
        self.bytes[kind] += size
        cost = self._costs.setdefault((source, target, from_host), LinkCost())
        cost.observe(size, took_s * 1_000.0)
        return begin_s + took_s

    def save(self, node: str, size: int, now_s: float) -> float:
        """Copy ``size`` bytes from a node's GPU to its host memory; when that ends.

        It has a direction of the bus of its own, and delays nobody.
        """
        way = f"{node} to host"
        end_s = max(now_s, self._busy_until_s[way]) + size / self._shape.host_bytes_s
        self._busy_until_s[way] = end_s
        self.bytes["hbm>host"] += size
        return end_s

    def saved_ms(self, source: str, tokens: int, size: int) -> float:
        """What a prefill engine is thought to save by pulling a prefix from a node; 0 while it
        is not known."""
        for target, prefill in self.prefill.items():
            computing = predict_recompute_ms(prefill, tokens)
            moving = predict_move_ms(self.known(source, target, from_host=False), size)
            if computing is not None:
                return max(0.0, computing - (moving or 0.0))
        return 0.0

    def _takes_s(self, source: str, target: str, size: int, from_host: bool) -> float:
        shape = self._shape
        if source == target:
            return size / shape.host_bytes_s
        rate = min(shape.link_bytes_s, shape.host_bytes_s) if from_host else shape.link_bytes_s
        return shape.link_floor_s + size / rate


def _ways(source: str, target: str, from_host: bool) -> list[str]:
    ways = [f"{source} from host"] if from_host else []
    return ways if source == target else [*ways, f"{source} out", f"{target} in"]
