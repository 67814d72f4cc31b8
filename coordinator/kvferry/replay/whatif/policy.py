"""The policy under which history is decided again."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import msgspec

from kvferry.core.cost import LinkCost, pair_key
from kvferry.core.kept import kept
from kvferry.core.retention_settings import RetentionSettings
from kvferry.core.retention_value import Rules
from kvferry.core.state import NodeState
from kvferry.errors import ConfigError


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """How one node keeps; sizes in blocks of the engine."""

    blocks: int
    lease_blocks: int
    watermark_blocks: int
    host_blocks: int
    rules: Rules
    min_pull_tokens: int = 0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from what the nodes themselves say; nothing by default.

    Attributes:
        ttl_s: how long a lease lasts.
        lease_budget: share of each pool that leases may hold.
        free_watermark: leases end while less than this share of a pool is free.
        retain_max_s: a request may ask for so long a lease at most.
        pool: size of each pool, relative to what it is.
        host_tier_bytes: host memory of each node; 0 for none.
        threshold_ms: a pull must be thought to save so much.
        min_pull_tokens: a pull must bring so many.
        link_factor: how much faster all links are.
        links: rates of single links in bytes/s, by ``source>target``.
        extra_decode: decode nodes more than there are.
    """

    ttl_s: float | None = None
    lease_budget: float | None = None
    free_watermark: float | None = None
    retain_max_s: float | None = None
    pool: float = 1.0
    host_tier_bytes: int | None = None
    threshold_ms: float = 0.0
    min_pull_tokens: int | None = None
    link_factor: float = 1.0
    links: Mapping[str, float] = {}
    extra_decode: int = 0
    weighed: bool = True
    """Whether moves were weighed against computing (the coordinator's ``--cost``) where the ledger
    does not say: in spaces led by older versions."""

    @property
    def recorded(self) -> Policy:
        """The recorded policy itself."""
        return Policy(weighed=self.weighed)

    @property
    def changes(self) -> bool:
        """Whether anything differs."""
        return self != self.recorded

    @property
    def weighs_otherwise(self) -> bool:
        """Whether other things are worth moving than were."""
        return bool(self.links) or self.link_factor != 1.0 or self.threshold_ms > 0.0

    def keeping(self, said: Keeping, block_bytes: int) -> Keeping:
        """How a node keeps under this policy that keeps so in truth."""
        blocks = max(1, round(said.blocks * self.pool))
        scale = blocks / max(1, said.blocks)
        lease = round(said.lease_blocks * scale)
        if self.lease_budget is not None:
            lease = int(blocks * self.lease_budget)
        watermark = round(said.watermark_blocks * scale)
        if self.free_watermark is not None:
            watermark = int(blocks * self.free_watermark)
        rules, host, least = said.rules, said.host_blocks, said.min_pull_tokens
        if self.ttl_s is not None:
            rules = msgspec.structs.replace(rules, lease_ms=max(1, round(self.ttl_s * 1_000)))
            lease = lease if self.ttl_s > 0 else 0
        if self.retain_max_s is not None:
            rules = msgspec.structs.replace(rules, retain_max_ms=round(self.retain_max_s * 1_000))
        if self.host_tier_bytes is not None:
            host = self.host_tier_bytes // block_bytes if block_bytes > 0 else 0
        if self.min_pull_tokens is not None:
            least = self.min_pull_tokens
        return Keeping(
            blocks=blocks,
            lease_blocks=lease,
            watermark_blocks=watermark,
            host_blocks=host,
            rules=rules,
            min_pull_tokens=least,
        )

    def check_nodes(self, known: Iterable[str]) -> None:
        """Whether the links that are named lie between nodes that the ledger knows.

        Raises:
            ConfigError: one does not; the text suggests near names.
        """
        names = sorted(set(known))
        for pair in self.links:
            for name in pair.split(">"):
                if name not in names:
                    near = difflib.get_close_matches(name, names, n=3) or names[:8]
                    listed = ", ".join(near) if near else "it knows none"
                    raise ConfigError(
                        f"--link-rate: the ledger knows no node {name!r}; did you mean {listed}?"
                    )


def said_by(node: NodeState, settings: RetentionSettings) -> Keeping:
    """How a node kept under the settings in force then."""
    now = kept(node, settings)
    return Keeping(
        blocks=node.blocks,
        lease_blocks=now.lease_blocks,
        watermark_blocks=now.watermark_blocks,
        host_blocks=now.host_blocks,
        rules=now.rules,
        min_pull_tokens=node.min_pull_tokens,
    )


class Rates(dict[str, LinkCost]):
    """What links cost under a policy, by ``source>target/backend``: what is learned, scaled.

    Args:
        learned: as the ledger taught it so far; followed as it changes.
        policy: says how much faster or slower links are.
        alike: an extra node to the one whose links it is thought to have.
    """

    def __init__(
        self, learned: Mapping[str, LinkCost], policy: Policy, alike: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._learned, self._policy, self._alike = learned, policy, alike

    def get(self, key: str, default: object = None) -> LinkCost | None:  # type: ignore[override]
        """The cost of a link; None while it is not known."""
        pair, _, backend = key.rpartition("/")
        source, _, target = pair.partition(">")
        source, target = self._alike.get(source, source), self._alike.get(target, target)
        pair = pair_key(source, target)
        known = self._learned.get(f"{pair}/{backend}")
        if source == target:
            return known  # The node's own host memory is no link.
        rate = self._policy.links.get(pair)
        if rate is not None:
            return at_rate(known, rate)
        if known is None or not known.n or self._policy.link_factor == 1.0:
            return known
        return _scaled(known, known.fit.coefficients[1] / self._policy.link_factor)


def at_rate(known: LinkCost | None, bytes_per_s: float) -> LinkCost:
    """A link of that rate, with the fixed part of the known one."""
    per_mb = 1e3 / (bytes_per_s * 1e-6)
    if known is not None and known.n:
        return _scaled(known, per_mb)
    made = LinkCost()
    for size in (1e6, 1e9):
        made.observe(size, 1.0 + size * 1e-6 * per_mb)
    return made


def _scaled(known: LinkCost, per_mb: float) -> LinkCost:
    fit = msgspec.structs.replace(known.fit, coefficients=[known.fit.coefficients[0], per_mb])
    return LinkCost(fit=fit)
